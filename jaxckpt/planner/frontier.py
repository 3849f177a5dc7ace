"""The frontier of a step on a target: how much time each amount of memory costs, from the smallest total up.

Points are compiled plans, each smaller than all that are faster. `frontier_search` finds them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from jaxckpt._errors import InfeasibleBudgetError
from jaxckpt._shown import Shown
from jaxckpt._units import budget_bytes, format_bytes
from jaxckpt.compiler import Footprint
from jaxckpt.planner.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """One plan of a frontier.

    Attributes:
      total_bytes: As compiled, bytes per device.
      step_s: Estimated seconds of a step: the roofline of the compiled program.
      plan: With its footprint.
    """

    total_bytes: int
    step_s: float
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedPoint:
    """Expected figures of a plan between two compiled ones, which was not compiled.

    Attributes:
      total_bytes: The prediction, corrected by the model errors at the neighbouring compiled points.
      step_s: Seconds, corrected likewise.
    """

    total_bytes: int
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier(Shown):
    """Plans of one step from the smallest to the fastest; none is beaten by another both ways.

    Attributes:
      step: The step's name.
      target: The machine's.
      points: From the smallest total to the fastest; totals rise and times fall strictly.
      between: Expected points for budgets between the compiled ones.
      unplanned: The footprint of the step as it is.
      compiles: How many programs were compiled for it.
      dropped: Compiled plans that another one beats: smaller, or faster, and not worse otherwise.
    """

    _report: ClassVar[str] = "jaxckpt.report.frontier:frontier_report"

    step: str
    target: str
    points: tuple[FrontierPoint, ...]
    between: tuple[ExpectedPoint, ...] = ()
    unplanned: Footprint = field(repr=False)
    compiles: int = 0
    dropped: int = 0

    def __iter__(self) -> Iterator[FrontierPoint]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    @property
    def smallest(self) -> FrontierPoint:
        """The point of least memory."""
        return self.points[0]

    @property
    def fastest(self) -> FrontierPoint:
        """The point of least time."""
        return self.points[-1]

    def at(self, budget: str | int | float) -> Plan:
        """The fastest compiled plan of the frontier within a budget; `jaxckpt.plan` may find a faster one.

        Args:
          budget: "6GiB", "6GB", bytes, or a share of the unplanned step's footprint (0.5, "50%").

        Raises:
          BudgetError: The budget is no amount of memory.
          InfeasibleBudgetError: The smallest plan is larger.
        """
        limit_bytes = budget_bytes(budget, baseline_bytes=self.unplanned.total_bytes)
        fitting = [point for point in self.points if point.total_bytes <= limit_bytes]
        if fitting:
            return fitting[-1].plan
        needed_bytes = self.smallest.total_bytes
        raise InfeasibleBudgetError(
            f"Frontier.at({budget!r}): no plan of the frontier is that small.",
            got=f"budget {format_bytes(limit_bytes)}",
            needed=f"at least {format_bytes(needed_bytes)} as compiled",
            advice="frontier.smallest.plan, or what jaxckpt.Planner(...).floor() names",
            budget_bytes=limit_bytes,
            minimum_bytes=needed_bytes,
            minimum_measured=True,
            blocking=(),
        )
