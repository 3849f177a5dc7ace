"""Memory against time: a step planned for many budgets, some of them compiled.

The model is asked for plans from its smallest total to its fastest, which takes no compiler. Of these the two ends are
compiled, and of the others, one after the other, the plan in the middle of the widest gap: the two chosen neighbours
that span most memory times time. Compiled plans that another one dominates are dropped.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Unpack

from jaxckpt import ir
from jaxckpt._errors import ArgumentError, InfeasibleBudgetError
from jaxckpt._progress import Progress
from jaxckpt._shown import Shown
from jaxckpt._step import Step
from jaxckpt._units import budget_bytes, format_bytes, format_seconds
from jaxckpt.compiler import Footprint
from jaxckpt.machine import Target
from jaxckpt.planner.gc_pause import collector_paused
from jaxckpt.planner.model_error import CompiledPlan, ModelError
from jaxckpt.planner.options import PlanKeywords, PlanOptions, options_with
from jaxckpt.planner.planner import Planner
from jaxckpt.planner.user_plan import Plan

_DEFAULT = PlanOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """One plan of a frontier: compiled bytes per device, and seconds of a step by the compiled program's roofline."""

    total_bytes: int
    step_s: float
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedPoint:
    """Expected figures of a plan that was not compiled, corrected by the model errors at the compiled neighbours."""

    total_bytes: int
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Frontier(Shown):
    """Plans of one step from the smallest to the fastest; no plan is both smaller and faster than another.

    Attributes:
      points: From the smallest total to the fastest; totals rise and times fall strictly.
      between: Predicted points for budgets between the compiled ones.
      unplanned: The footprint of the step as written.
      compiles: The number of programs that were compiled for it.
      dropped: Compiled plans that are not on the frontier: another plan is smaller or faster, and not worse otherwise.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> frontier = jaxckpt.pareto(step, jnp.eye(64), jnp.ones((512, 64)), target="cpu", points=2)
      >>> plan = frontier.at(1.0)  # the fastest in the memory of the step as written
      >>> plan.footprint.total_bytes <= frontier.unplanned.total_bytes
      True
      >>> len(frontier) == len(frontier.points) and frontier.smallest == frontier.points[0]
      True
    """

    _report: ClassVar[str] = "jaxckpt.report.search:frontier_report"

    step: str
    target: str
    points: tuple[FrontierPoint, ...]
    between: tuple[ExpectedPoint, ...] = ()
    unplanned: Footprint = field(repr=False)
    compiles: int = 0
    dropped: int = 0

    def summary(self) -> str:
        """The figures that matter most, in one line."""
        ends = (f"{format_bytes(p.total_bytes)} in {format_seconds(p.step_s)}" for p in (self.smallest, self.fastest))
        return f"{self.step} on {self.target}: {len(self)} plans from {' to '.join(ends)}"

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


def pareto(
    step: Callable[..., Any] | Step,
    *args: Any,
    target: Target | str,
    points: int = 8,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    options: PlanOptions = _DEFAULT,
    progress: Progress | None = None,
    **keywords: Unpack[PlanKeywords],
) -> Frontier:
    """Finds the time that each amount of memory costs: plans from the smallest total to the fastest.

    Args:
      step: Loss, gradient and, if there is one, the update: a function, plain or jitted; or a `jaxckpt.Step`.
      *args: Its arguments: arrays or `jax.ShapeDtypeStruct`s.
      target: A `Target` or its name ("h200").
      points: Number of plans to compile, two or more; fewer if the model has no further distinct plans.
      donate_argnums: Arguments whose memory the results may take; those of a jitted step are read from it.
      static_argnums: Arguments that are not traced; those of a jitted step are read from it.
      options: All options as one object; `max_compiles` is ignored.
      progress: Called with a sentence before each longer piece of work.
      **keywords: Fields of `PlanOptions`, which override those of `options`.

    Returns:
      Compiled plans of which none is both smaller and faster than another, and predictions between them. Times are
      estimates from the compiled programs, not measurements.

    Raises:
      ArgumentError: Fewer than two points are asked for, or an argument of the step is no array.
      NoGradientError, UnknownTargetError, MissingPackageError: As for `jaxckpt.plan`.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> frontier = jaxckpt.pareto(step, jnp.eye(64), jnp.ones((512, 64)), target="cpu", points=2)
      >>> times = [point.step_s for point in frontier]  # from the smallest plan to the fastest
      >>> times == sorted(times, reverse=True)
      True
      >>> all(point.plan.footprint.total_bytes == point.total_bytes for point in frontier)
      True
    """
    if not isinstance(points, int) or isinstance(points, bool) or points < 2:
        raise ArgumentError(
            "pareto(points=...) needs two ends.", got=f"points = {points!r}", needed="2 or more", advice="points=8"
        )
    machine = Target(target)
    machine.require_compiler()
    planner = Planner(
        Step.of(step, args, donate_argnums=donate_argnums, static_argnums=static_argnums),
        target=machine,
        options=options_with(options, keywords, called=pareto),
        progress=progress,
    )
    return frontier_of(planner, points=points)


def frontier_of(planner: Planner, *, points: int = 8) -> Frontier:
    """The frontier of a step that is traced already; what its planner compiled before is not compiled again."""
    asked = _asked(planner, points)
    chosen = dict.fromkeys((planner.smallest().plan, asked[-1]))
    while len(chosen) < points and (plan := _in_widest_gap(chosen, asked)) is not None:
        chosen[plan] = None

    def seconds(candidate: CompiledPlan) -> float:
        return planner.step_s_with_stalls(candidate) or candidate.step_s

    best = tuple(_undominated(planner.measure_all(chosen), seconds))
    return Frontier(
        step=planner.traced.name,
        target=planner.target.name,
        points=tuple(
            FrontierPoint(
                total_bytes=candidate.footprint.total_bytes,
                step_s=seconds(candidate),
                plan=planner.as_plan(candidate, budget_bytes=candidate.footprint.total_bytes),
            )
            for candidate in best
        ),
        between=tuple(_expected(asked, best, seconds)),
        unplanned=planner.unplanned,
        compiles=planner.compile_count,
        dropped=len(chosen) - len(best),
    )


def _asked(planner: Planner, points: int) -> list[ir.GraphPlan]:
    """The model's plans from the smallest to the fastest, each faster than those before."""
    solver, tiling = planner.solver, planner.tiling_solver
    planner.forget_budgets()
    with collector_paused():
        fastest = solver.solve(None)
        low, high = solver.min_memory_plan.predicted.temp_bytes, fastest.predicted.temp_bytes
        plans = [
            solver.solve(budget, allow_empty=False) for budget in _evenly(low, high, planner.limits.asked * points)
        ]
        plans += planner.simple_rules
        for least in planner.min_memory_tilings:
            assert tiling is not None, "the tilings come from it"
            budgets = _evenly(least.predicted.temp_bytes, low, points)
            plans += [tiling.solve(budget, allow_empty=False) for budget in budgets]
        if planner.chunk_solver is not None:
            lowest = min((plan.predicted.temp_bytes for plan in planner.min_memory_chunks), default=low)
            budgets = _evenly(min(lowest, low), high, planner.limits.asked * points)
            plans += [planner.chunk_solver.solve(budget, allow_empty=False) for budget in budgets]
        if planner.host_state_solver is not None:
            others = min(plan.predicted.total_bytes for plan in plans)
            lowest = min(plan.predicted.total_bytes for plan in planner.host_state_solver.min_memory_plans)
            found = map(planner.host_state_solver.solve, _evenly(lowest, max(lowest, others), points))
            plans += [plan for plan in found if plan is not None]
        plans.append(fastest)
    by_size = sorted(dict.fromkeys(plans), key=lambda p: (p.predicted.total_bytes, p.predicted.step_s))
    best: list[ir.GraphPlan] = []
    for plan in by_size:
        if not best or plan.predicted.step_s < best[-1].predicted.step_s:
            best.append(plan)
    return best


def _evenly(low: int, high: int, count: int) -> list[int]:
    """So many numbers from the lower one on, the higher one not among them."""
    return [low + (high - low) * i // count for i in range(count)]


def _in_widest_gap(known: Container[ir.GraphPlan], asked: Sequence[ir.GraphPlan]) -> ir.GraphPlan | None:
    """The plan nearest to the middle of the neighbours that span most memory times time; None if all are known."""
    known_points = sorted((plan.predicted for plan in asked if plan in known), key=lambda p: p.total_bytes)
    widest, found = -1.0, None
    for low, high in pairwise([asked[0].predicted, *known_points]):
        inner = [p for p in asked if p not in known and low.total_bytes <= p.predicted.total_bytes <= high.total_bytes]
        area = (high.total_bytes - low.total_bytes) * abs(low.step_s - high.step_s)
        if inner and area > widest:
            middle = (low.total_bytes + high.total_bytes) / 2
            widest, found = area, min(inner, key=lambda plan: abs(plan.predicted.total_bytes - middle))
    return found


def _undominated(
    candidates: Iterable[CompiledPlan], seconds: Callable[[CompiledPlan], float]
) -> Iterator[CompiledPlan]:
    """Plans that no other one equals or beats in both bytes and seconds, from the smallest to the fastest."""
    fastest_s = float("inf")
    for candidate in sorted(candidates, key=lambda c: (c.footprint.total_bytes, seconds(c))):
        if seconds(candidate) < fastest_s:
            fastest_s = seconds(candidate)
            yield candidate


def _expected(
    asked: Sequence[ir.GraphPlan], compiled: Sequence[CompiledPlan], seconds: Callable[[CompiledPlan], float]
) -> Iterator[ExpectedPoint]:
    """Expected figures of plans that were not compiled: those between the compiled ends that keep the order."""
    error = ModelError(compiled, seconds=seconds)
    known = {candidate.plan for candidate in compiled}
    largest_bytes, least_s = compiled[-1].footprint.total_bytes, seconds(compiled[-1])
    last = ExpectedPoint(total_bytes=compiled[0].footprint.total_bytes, step_s=seconds(compiled[0]))
    for plan in asked:
        expected = plan.predicted
        error_bytes, error_s = error.at(expected.total_bytes), error.seconds_at(expected.total_bytes)
        point = ExpectedPoint(total_bytes=expected.total_bytes + error_bytes, step_s=expected.step_s + error_s)
        inside = last.total_bytes < point.total_bytes < largest_bytes and least_s < point.step_s < last.step_s
        if inside and plan not in known:
            last = point
            yield point
