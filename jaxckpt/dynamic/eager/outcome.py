"""Result of running a step eagerly under a budget, as frozen data."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from jaxckpt._shown import Shown
from jaxckpt._units import format_bytes, format_seconds
from jaxckpt.dynamic import Simulation


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class EagerRun(Shown):
    """A run of a step.

    Attributes:
      outputs: What the step returns.
      counters: The engine's; its prices are seconds, its `run_s` is that of the whole run.
      peak_bytes: The most that the step's arrays were at a time, arguments included, as the arrays themselves say.
        What an op needs inside itself is not in it.
      unlimited_bytes: The most that they would be without a budget.
      trace_s: Seconds to make a program of the step; next to nothing where its arguments were of a known kind.
      compute_s: Seconds in ops, those computed again included.
    """

    _report: ClassVar[str] = "jaxckpt.dynamic.compare.report:eager_report"

    outputs: Any = field(repr=False)
    counters: Simulation
    peak_bytes: int
    unlimited_bytes: int
    trace_s: float
    compute_s: float

    @property
    def recomputations(self) -> int:
        """Ops that were run again."""
        return self.counters.recomputations

    @property
    def evictions(self) -> int:
        """Arrays that were evicted to make room."""
        return self.counters.forced_evictions

    def summary(self) -> str:
        """The figures that matter most, in one line."""
        return str(self).splitlines()[0]

    def __str__(self) -> str:
        counters = self.counters
        budget = "no limit" if counters.budget_bytes is None else f"budget {format_bytes(counters.budget_bytes)}"
        return "\n".join(
            (
                f"{counters.evictor} ({counters.mode}), {budget}: {format_bytes(self.peak_bytes)} at the peak, "
                f"{format_bytes(self.unlimited_bytes)} without a budget",
                f"  ops          {counters.operations - 1} = {counters.base_operations} + {self.recomputations} again",
                f"  evictions    {self.evictions} forced, {counters.eager_evictions} at a release",
                f"  seconds      {format_seconds(counters.run_s)}, of these {format_seconds(self.compute_s)} in ops, "
                f"{format_seconds(counters.search_s)} in searches; tracing {format_seconds(self.trace_s)}",
            )
        )
