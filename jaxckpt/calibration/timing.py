"""Timing of a run: the median over enough repetitions, with the interquartile range.

Warm-up runs are thrown away: they compile, load and allocate. Then at least `least` runs are timed, and more while the
budget lasts: a median of many tells nothing of the one run that something else disturbed. Who is timed must wait for
the device itself.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxckpt.machine import Measured

Clock = Callable[[], float]
"""Seconds since any moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of a run; the spread is that between the quarters, as a share of the median."""

    median_s: float
    spread: float
    count: int

    def above(self, floor_s: float) -> float:
        """Seconds of the work alone, where starting anything takes `floor_s`."""
        return max(self.median_s - floor_s, 1e-9)

    def figure(self, what: str, detail: str, value: float, unit: str) -> Measured:
        """The figure that follows from these runs."""
        return Measured(what=what, detail=detail, value=value, unit=unit, spread=self.spread, count=self.count)


def timing_of(seconds: list[float]) -> Timing:
    """Median and spread of runs of these seconds.

    Example:
      >>> timing_of([1.0, 1.0, 1.2, 9.0, 0.9]).median_s
      1.0
    """
    median_s = statistics.median(seconds)
    low, _, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else (median_s,) * 3
    spread = (high - low) / median_s if median_s else 0.0
    return Timing(median_s=median_s, spread=spread, count=len(seconds))


def timed(
    run: Callable[[], Any],
    *,
    budget_s: float = 0.3,
    least: int = 5,
    most: int = 50,
    warmups: int = 2,
    clock: Clock = time.perf_counter,
) -> Timing:
    """Times something that waits until it is done.

    No run is begun after `budget_s`, warm-ups not counted, once there are `least` runs; there are `most` at most.

    Example:
      >>> timed(lambda: None, least=3, most=3).count
      3
    """
    for _ in range(warmups):
        run()
    seconds: list[float] = []
    begun_s = clock()
    while len(seconds) < least or (len(seconds) < most and clock() - begun_s < budget_s):
        before_s = clock()
        run()
        seconds.append(clock() - before_s)
    return timing_of(seconds)
