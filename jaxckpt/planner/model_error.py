"""The error of predictions, learned from compiled plans.

Compiled totals follow predicted ones, but for values that the model does not see and values that the compiler holds
longer. Between two compiled plans the error is interpolated over the predicted total; beyond them it stays what it is
at the last one.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from jaxckpt import ir
from jaxckpt.compiler import Footprint
from jaxckpt.planner.limits import Limits


@dataclass(frozen=True, slots=True)
class CompiledPlan:
    """A plan with its compiled footprint."""

    plan: ir.GraphPlan
    footprint: Footprint

    @property
    def step_s(self) -> float:
        """Estimated seconds of the compiled program; predicted ones where the footprint has none."""
        return self.footprint.step_s or self.plan.predicted.step_s

    @property
    def model_error_bytes(self) -> int:
        """Compiled minus predicted total: positive where the model predicts too little."""
        return self.footprint.total_bytes - self.plan.predicted.total_bytes

    @property
    def model_error(self) -> float:
        """The error of the predicted total either way, as a share of it."""
        return abs(self.model_error_bytes) / max(1, self.plan.predicted.total_bytes)

    def fits(self, limit_bytes: int) -> bool:
        """True if the compiled total is within a budget, bytes per device."""
        return self.footprint.total_bytes <= limit_bytes


class ModelError:
    """Errors of the predictions of some compiled plans, at any predicted total.

    Args:
      compiled: The plans; more than one may have the same predicted total.
      otherwise_bytes: The error where nothing was compiled.
      seconds: Estimated seconds of a compiled step.
    """

    def __init__(
        self,
        compiled: Iterable[CompiledPlan],
        *,
        otherwise_bytes: int = 0,
        seconds: Callable[[CompiledPlan], float] = lambda compiled: compiled.step_s,
    ):
        by_size = sorted(compiled, key=lambda c: (c.plan.predicted.total_bytes, c.footprint.total_bytes))
        self._points = [(c.plan.predicted.total_bytes, c.footprint.total_bytes) for c in by_size]
        self._errors_s = [seconds(c) - c.plan.predicted.step_s for c in by_size]
        self._otherwise_bytes = otherwise_bytes

    def at(self, predicted_bytes: int) -> int:
        """Compiled minus predicted bytes that are expected at a predicted total."""
        if not self._points:
            return self._otherwise_bytes
        return int(self._interpolated([compiled - predicted for predicted, compiled in self._points], predicted_bytes))

    def seconds_at(self, predicted_bytes: int) -> float:
        """Estimated seconds of the compiled step minus those predicted, expected at a predicted total."""
        return self._interpolated(self._errors_s, predicted_bytes)

    def _interpolated(self, errors: Sequence[float], predicted_bytes: int) -> float:
        above = bisect_left(self._points, (predicted_bytes, 0))
        low, high = max(0, above - 1), min(above, len(errors) - 1)
        span = self._points[high][0] - self._points[low][0]
        share = min(1.0, max(0.0, (predicted_bytes - self._points[low][0]) / span)) if span else 0.0
        return errors[low] + share * (errors[high] - errors[low])

    def question(self, limit_bytes: int, limits: Limits, *, fixed_bytes: int = 0) -> int:
        """The predicted total at which the compiled total should be a budget, a little below where it is corrected.

        Between the largest plan that fits and the next one that does not, it is where a line through both meets the
        budget (a secant search). The more plans were too large, the more is taken off: some corrections change less of
        the compiled total than of the predicted one, and others miss the budget by a few kibibytes each time.

        The model is off for temporaries: `fixed_bytes`, those that no plan changes, take no part in what is taken off.
        """
        if not self._points:
            return limit_bytes - self._otherwise_bytes
        fitting = [point for point in self._points if point[1] <= limit_bytes]
        low = fitting[-1] if fitting else None
        too_large = [point for point in self._points if point[1] > limit_bytes and (low is None or point[0] > low[0])]
        margin = limits.margins[min(max(len(too_large), 1), len(limits.margins)) - 1]
        aimed_bytes = limit_bytes - int(margin * max(0, limit_bytes - fixed_bytes))
        if low is None or not too_large:
            predicted_bytes, compiled_bytes = low or too_large[0]
            return predicted_bytes + aimed_bytes - compiled_bytes
        high = too_large[0]
        return low[0] + int((high[0] - low[0]) * (aimed_bytes - low[1]) / (high[1] - low[1]))
