"""Rates are corrected by whole steps that were timed: one factor for each class of kernels, and one for launches.

The estimate of a step is a sum over its kernels, so it is linear in what a class of them takes of its roofline. The
factors are those of least squares in relative error, within bounds, drawn a little towards what was believed before:
a class that hardly occurs keeps its factor, and a dozen steps cannot be fitted by nonsense. Errors are told for the
old rates, for the new ones, and for steps of each group by factors fitted to the other groups alone.

Read after `rates`. Source: Tikhonov regularisation with bounds (scipy's `lsq_linear`, BVLS).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from scipy.optimize import lsq_linear

from jaxckpt.cost import Rates
from jaxckpt.hlo import CLASSES, Kernel, class_of, roofline_s
from jaxckpt.machine import Calibration

_BOUNDS = (0.4, 5.0)
"""A class takes at least and at most so many times its roofline."""
_PULL = 0.05
"""How strongly a factor is held where it was: as much as a step whose time is wrong by this share of the move."""
_LAUNCH = "launch"


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
      factors: For each class that occurs, and for "launch", how many times the old roofline it takes.
      rates: The old rates corrected: estimates with them are the fitted ones.
      before: Errors of the old rates.
      after: Errors of the new ones, on the steps that they were fitted to.
      held_out: Errors on each group by factors fitted to the others; empty where there is one group.
    """

    factors: Mapping[str, float]
    rates: Rates
    before: Errors
    after: Errors
    held_out: Errors


def fit_rates(steps: Sequence[TimedStep], rates: Rates, *, pull: float = _PULL) -> RateFit:
    """Corrects rates by steps that were timed.

    Args:
      steps: At least one, compiled for the device and timed on it.
      rates: What is believed of the device.
      pull: How strongly factors are held where they were; 0 lets the steps alone decide.

    Returns:
      New rates, with the errors of old and new ones.

    Example:
      >>> rates = Rates(name="toy", matmul_flops_per_s=(), vector_flops_per_s=1e12, memory_bandwidth_bytes_per_s=1e9,
      ...     host_bandwidth_bytes_per_s=1e9, launch_s=1e-6, memory_bytes=1)
      >>> kernels = Kernel(name="add", opcode="add", count=100, traffic_bytes=1_000_000),
      >>> fit = fit_rates([TimedStep(name="a", group="a", kernels=kernels, measured_s=0.2)], rates)
      >>> round(fit.before.worst, 2), round(fit.after.worst, 2)
      (-0.5, -0.0)
    """
    factors = _fitted(steps, rates, pull)
    groups = dict.fromkeys(step.group for step in steps)
    held_out: list[float] = []
    if len(groups) > 1:
        for group in groups:
            others = _fitted([step for step in steps if step.group != group], rates, pull)
            held_out.extend(_errors([step for step in steps if step.group == group], corrected(rates, others)).relative)
    new = corrected(rates, factors)
    return RateFit(
        factors=factors,
        rates=new,
        before=_errors(steps, rates),
        after=_errors(steps, new),
        held_out=Errors(relative=tuple(held_out)),
    )


def estimated_s(kernels: Sequence[Kernel], rates: Rates) -> float:
    """Seconds of a program by roofline, as `jaxckpt.hlo.step_s` has it for a whole memory map."""
    parts = seconds_by_class(kernels, rates)
    return parts.pop(_LAUNCH, 0.0) + sum(rates.factor(name) * seconds for name, seconds in parts.items())


def seconds_by_class(kernels: Sequence[Kernel], rates: Rates) -> dict[str, float]:
    """Seconds of each class of kernels by roofline alone, no factor applied, and those of "launch".

    Args:
      kernels: Of a program.
      rates: What the device can do.
    """
    parts: dict[str, float] = {}
    for kernel in kernels:
        seconds = kernel.count * roofline_s(kernel, rates)
        if seconds:
            parts[class_of(kernel)] = parts.get(class_of(kernel), 0.0) + seconds
            parts[_LAUNCH] = parts.get(_LAUNCH, 0.0) + kernel.count * rates.launch_s
    return parts


def corrected(rates: Rates, factors: Mapping[str, float]) -> Rates:
    """Rates of which every class takes so many times what it took.

    The elementwise factor goes into the rates themselves, so that those who know no classes have it too; the other
    classes' factors are then relative to it.

    Args:
      rates: The old ones.
      factors: By class, and of "launch"; 1 where there is none.
    """
    whole = {name: rates.factor(name) * factors.get(name, 1.0) for name in CLASSES}
    common = whole.pop("elementwise")
    relative = {name: factor / common for name, factor in whole.items()}
    return replace(
        rates,
        matmul_flops_per_s=tuple((dtype, rate / common) for dtype, rate in rates.matmul_flops_per_s),
        vector_flops_per_s=rates.vector_flops_per_s / common,
        memory_bandwidth_bytes_per_s=rates.memory_bandwidth_bytes_per_s / common,
        launch_s=rates.launch_s * factors.get(_LAUNCH, 1.0),
        factors=tuple(relative.items()),
    )


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
        matmul_flops_per_s=fit.rates.matmul_flops_per_s,
        matmul_ramp_flops=fit.rates.matmul_ramp_flops,
        vector_flops_per_s=fit.rates.vector_flops_per_s,
        memory_bandwidth_bytes_per_s=fit.rates.memory_bandwidth_bytes_per_s,
        launch_s=fit.rates.launch_s,
        factors=fit.rates.factors,
    )


def _fitted(steps: Sequence[TimedStep], rates: Rates, pull: float) -> dict[str, float]:
    """Factors on top of those that the rates have already."""
    parts = [seconds_by_class(step.kernels, rates) for step in steps]
    names = sorted({name for each in parts for name in each})
    if not names:
        return {}
    measured = np.array([step.measured_s for step in steps])
    seconds = np.array([[each.get(name, 0.0) * rates.factor(name) for name in names] for each in parts])
    held = pull * np.eye(len(names))
    left = np.concatenate([seconds / measured[:, None], held])
    right = np.concatenate([np.ones(len(steps)), held.sum(axis=1)])
    found = lsq_linear(left, right, bounds=_BOUNDS, method="bvls")
    return dict(zip(names, map(float, found.x), strict=True))


def _errors(steps: Sequence[TimedStep], rates: Rates) -> Errors:
    return Errors(relative=tuple(estimated_s(step.kernels, rates) / step.measured_s - 1 for step in steps))
