"""Two rates are corrected by whole steps that were timed: the memory's bandwidth, and the launch of a kernel.

A step takes the sum over its kernels of the launch and of the arithmetic or the traffic, whichever is longer. The rate
of matrix products is measured by itself; what is left is how fast kernels of steps go over memory. A factor for each
class of kernels (products, reductions, transposes, gathers) fits no better: on 68 steps of 18 models the median error
was 7.7%, of models that the fit had not seen 11.6%. The two shipped rates have 4.0% and 4.9% (docs/measured.md).

The fit is by least squares in relative error, drawn a little towards what was believed before. Errors are told for the
old rates, for the new ones, and for steps of each group by rates fitted to the other groups alone.

Read after `rates`. Source: Tikhonov regularisation (scipy's `least_squares`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median

import numpy as np
from scipy.optimize import least_squares

from jaxckpt.cost import Rates
from jaxckpt.hlo import Kernel, kernel_s, roofline_s
from jaxckpt.machine import Calibration

_PULL = 0.05
"""How strongly a rate is held where it was: as much as a step whose time is wrong by this share of the move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """A compiled step and what it took on the device.

    Attributes:
      name: For people.
      group: Steps that are alike, those of one model: none of them vouches for another.
      kernels: Of the program that was timed, with how often each runs.
      measured_s: Seconds of one step.
    """

    name: str
    group: str
    kernels: tuple[Kernel, ...]
    measured_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """How far estimates are from measurements.

    Attributes:
      relative: For each step the estimate over the measurement, less 1.
    """

    relative: tuple[float, ...]

    @property
    def median(self) -> float:
        """Of the sizes of the errors."""
        return median(map(abs, self.relative)) if self.relative else 0.0

    @property
    def worst(self) -> float:
        """The largest error, with its sign."""
        return max(self.relative, key=abs, default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateFit:
    """Corrected rates.

    Attributes:
      rates: The old rates with the fitted bandwidth and launch.
      before: Errors of the old rates.
      after: Errors of the new ones, on the steps that they were fitted to.
      held_out: Errors on each group by rates fitted to the others; empty where there is one group.
    """

    rates: Rates
    before: Errors
    after: Errors
    held_out: Errors


def fit_rates(steps: Sequence[TimedStep], rates: Rates, *, pull: float = _PULL) -> RateFit:
    """Corrects rates by steps that were timed.

    Args:
      steps: At least one, compiled for the device and timed on it.
      rates: What is believed of the device.
      pull: How strongly rates are held where they were; 0 lets the steps alone decide.

    Returns:
      New rates, with the errors of old and new ones.

    Example:
      >>> rates = Rates(name="toy", matmul_flops_per_s=(), vector_flops_per_s=1e12, memory_bandwidth_bytes_per_s=1e9,
      ...     host_bandwidth_bytes_per_s=1e9, launch_s=1e-6, memory_bytes=1)
      >>> kernels = Kernel(name="add", opcode="add", count=100, traffic_bytes=1_000_000),
      >>> fit = fit_rates([TimedStep(name="a", group="a", kernels=kernels, measured_s=0.2)], rates)
      >>> round(fit.before.worst, 2), abs(round(fit.after.worst, 2))
      (-0.5, 0.0)
    """
    new = _fitted(steps, rates, pull)
    groups = dict.fromkeys(step.group for step in steps)
    held_out: list[float] = []
    if len(groups) > 1:
        for group in groups:
            others = _fitted([step for step in steps if step.group != group], rates, pull)
            held_out.extend(_errors([step for step in steps if step.group == group], others).relative)
    return RateFit(
        rates=new, before=_errors(steps, rates), after=_errors(steps, new), held_out=Errors(relative=tuple(held_out))
    )


def estimated_s(kernels: Sequence[Kernel], rates: Rates) -> float:
    """Seconds of a program by roofline, as `jaxckpt.hlo.step_s` has it for a whole memory map."""
    return sum(kernel.count * kernel_s(kernel, rates) for kernel in kernels)


def calibration_from_fit(fit: RateFit, calibration: Calibration, *, steps: Sequence[TimedStep]) -> Calibration:
    """A calibration with the fitted rates, which says so.

    Args:
      fit: Of `fit_rates`, with the rates of this calibration.
      calibration: What was measured of the device.
      steps: What was fitted to.
    """
    groups = ", ".join(dict.fromkeys(step.group for step in steps))
    return replace(
        calibration,
        source=f"{calibration.source}; fitted to {len(steps)} timed steps of {groups}"
        f" (median error {fit.before.median:.1%} before, {fit.after.median:.1%} after)",
        memory_bandwidth_bytes_per_s=fit.rates.memory_bandwidth_bytes_per_s,
        launch_s=fit.rates.launch_s,
    )


def _fitted(steps: Sequence[TimedStep], rates: Rates, pull: float) -> Rates:
    """The rates with the bandwidth and the launch that fit the steps best."""
    parts = [_seconds_by_cause(step.kernels, rates) for step in steps]
    measured = np.array([step.measured_s for step in steps])

    def errors(logs: np.ndarray) -> np.ndarray:
        per_byte, per_launch = np.exp(logs)
        seconds = [
            np.sum(launch) * per_launch + np.sum(np.maximum(arithmetic, traffic * per_byte))
            for launch, arithmetic, traffic in parts
        ]
        return np.concatenate([np.array(seconds) / measured - 1, pull * logs])

    per_byte, per_launch = np.exp(least_squares(errors, np.zeros(2)).x)
    return replace(
        rates,
        memory_bandwidth_bytes_per_s=rates.memory_bandwidth_bytes_per_s / float(per_byte),
        launch_s=rates.launch_s * float(per_launch),
    )


def _seconds_by_cause(kernels: Sequence[Kernel], rates: Rates) -> np.ndarray:
    """Three rows: the seconds of launches, of arithmetic and of traffic of each kernel, for all its runs."""
    arithmetic = replace(rates, memory_bandwidth_bytes_per_s=inf)
    traffic = replace(rates, matmul_flops_per_s=(), vector_flops_per_s=inf)
    rows = [
        (kernel.count * rates.launch_s, *(kernel.count * roofline_s(kernel, each) for each in (arithmetic, traffic)))
        for kernel in kernels
        if kernel_s(kernel, rates)
    ]
    return np.array(rows).reshape(-1, 3).T


def _errors(steps: Sequence[TimedStep], rates: Rates) -> Errors:
    return Errors(relative=tuple(estimated_s(step.kernels, rates) / step.measured_s - 1 for step in steps))
