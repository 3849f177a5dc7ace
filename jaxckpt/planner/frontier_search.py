"""Memory against time: a step planned for many budgets, some of them compiled.

The model is asked for plans from its smallest total to its fastest, which takes no compiler. Of these the two ends are
compiled, and then, one after the other, the plan in the middle of the widest gap: the two compiled neighbours that span
most memory times time. Compiled plans that another one dominates are dropped.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Unpack

from jaxckpt import ir
from jaxckpt._errors import ArgumentError
from jaxckpt._progress import Progress
from jaxckpt._step import Step
from jaxckpt.machine import Target
from jaxckpt.planner.frontier import ExpectedPoint, Frontier, FrontierPoint
from jaxckpt.planner.gc_pause import collector_paused
from jaxckpt.planner.options import PlanKeywords, PlanOptions
from jaxckpt.planner.planner import CompiledPlan, Planner

_ASKED = 3
"""Budgets asked of the model for each point to compile. More give a smoother expected frontier (`Frontier.between`) for
more time in the solver; `python -m benchmarks.frontier` shows its error. No benchmark fixed the exact value."""


_DEFAULT = PlanOptions()


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
      points: Number of plans to compile, two or more; fewer where the model knows no more that differ.
      donate_argnums: Arguments whose memory the results may take; taken over from a jitted step.
      static_argnums: Arguments that are not traced; taken over from a jitted step.
      options: What the planner may do, as one object; `max_compiles` is not read.
      progress: Called with a sentence before each longer piece of work.
      **keywords: Fields of `PlanOptions`, which go before those of `options`.

    Returns:
      Compiled plans of which none beats another in both memory and estimated time, and what the model expects between
      them. Times are estimates from the compiled programs, not measurements.

    Raises:
      ArgumentError: Fewer than two points are asked for, or an argument of the step is no array.
      NoGradientError, UnknownTargetError, MissingPackageError: As for `jaxckpt.plan`.
    """
    if not isinstance(points, int) or isinstance(points, bool) or points < 2:
        raise ArgumentError(
            "pareto(points=...) needs two ends.", got=f"points = {points!r}", needed="2 or more", advice="points=8"
        )
    planner = Planner(
        Step.of(step, args, donate_argnums=donate_argnums, static_argnums=static_argnums),
        target=target,
        options=replace(options, **keywords),
        progress=progress,
    )
    return frontier_of(planner, points=points)


def frontier_of(planner: Planner, *, points: int = 8) -> Frontier:
    """The frontier of a step that is traced already.

    Args:
      planner: Its planner; what it compiled before is not compiled again.
      points: As for `pareto`.
    """
    asked = list(_asked(planner, points))
    known = {plan: planner.measure(plan) for plan in dict.fromkeys((planner.smallest().plan, asked[-1]))}
    while len(known) < points:
        plan = _in_widest_gap(known, asked)
        if plan is None:
            break
        known[plan] = planner.measure(plan)
    best = tuple(_undominated(known.values()))
    return Frontier(
        step=planner.traced.name,
        target=planner.target.name,
        points=tuple(_point(planner, candidate) for candidate in best),
        between=tuple(_expected(asked, best)),
        unplanned=planner.unplanned,
        compiles=planner.compile_count,
        dropped=len(known) - len(best),
    )


def _asked(planner: Planner, points: int) -> Iterator[ir.GraphPlan]:
    """The model's plans from the smallest to the fastest, each faster than those before."""
    solver, tiling = planner.solver, planner.tiling_solver
    with collector_paused():
        fastest = solver.solve(None)
        low, high = solver.min_memory_plan.predicted.temp_bytes, fastest.predicted.temp_bytes
        plans = [solver.solve(budget, allow_empty=False) for budget in _evenly(low, high, _ASKED * points)]
        for least in planner.min_memory_tilings:
            assert tiling is not None, "the tilings come from it"
            budgets = _evenly(least.predicted.temp_bytes, low, points)
            plans += [tiling.solve(budget, allow_empty=False) for budget in budgets]
        plans.append(fastest)
    by_size = sorted(dict.fromkeys(plans), key=lambda p: (p.predicted.total_bytes, p.predicted.step_s))
    best: list[ir.GraphPlan] = []
    for plan in by_size:
        if not best or plan.predicted.step_s < best[-1].predicted.step_s:
            best.append(plan)
    yield from best


def _evenly(low: int, high: int, count: int) -> list[int]:
    """So many numbers from the lower one on, the higher one not among them."""
    return [low + (high - low) * i // count for i in range(count)]


def _in_widest_gap(known: dict[ir.GraphPlan, CompiledPlan], asked: Sequence[ir.GraphPlan]) -> ir.GraphPlan | None:
    """The plan nearest to the middle of the neighbours that span most memory times time; None if all are known."""
    ends = sorted((plan for plan in asked if plan in known), key=lambda p: p.predicted.total_bytes)
    inner = [(gap, plan) for gap in pairwise([asked[0], *ends]) for plan in asked if _is_inside(plan, gap, known)]
    if not inner:
        return None
    (low, high), _ = max(inner, key=lambda each: _area(*each[0]))
    middle = (low.predicted.total_bytes + high.predicted.total_bytes) / 2
    within = [plan for gap, plan in inner if gap == (low, high)]
    return min(within, key=lambda plan: abs(plan.predicted.total_bytes - middle))


def _is_inside(
    plan: ir.GraphPlan, gap: tuple[ir.GraphPlan, ir.GraphPlan], known: dict[ir.GraphPlan, CompiledPlan]
) -> bool:
    low, high = (end.predicted.total_bytes for end in gap)
    return plan not in known and low <= plan.predicted.total_bytes <= high


def _area(low: ir.GraphPlan, high: ir.GraphPlan) -> float:
    one, other = low.predicted, high.predicted
    return (other.total_bytes - one.total_bytes) * abs(one.step_s - other.step_s)


def _undominated(candidates: Iterable[CompiledPlan]) -> Iterator[CompiledPlan]:
    """Plans that no other one equals or beats in both bytes and seconds, from the smallest to the fastest."""
    fastest_s = float("inf")
    for candidate in sorted(candidates, key=lambda c: (c.footprint.total_bytes, compiled_step_s(c))):
        if compiled_step_s(candidate) < fastest_s:
            fastest_s = compiled_step_s(candidate)
            yield candidate


def compiled_step_s(candidate: CompiledPlan) -> float:
    """Estimated seconds of the compiled program; predicted ones where the footprint has none."""
    return candidate.footprint.step_s or candidate.plan.predicted.step_s


def _point(planner: Planner, candidate: CompiledPlan) -> FrontierPoint:
    total_bytes = candidate.footprint.total_bytes
    plan = planner.as_plan(candidate, budget_bytes=total_bytes)
    return FrontierPoint(total_bytes=total_bytes, step_s=compiled_step_s(candidate), plan=plan)


@dataclass(frozen=True, slots=True)
class _ModelError:
    """Compiled minus predicted figures of one compiled plan."""

    predicted_bytes: int
    error_bytes: int
    error_s: float


def _expected(asked: Sequence[ir.GraphPlan], compiled: Sequence[CompiledPlan]) -> Iterator[ExpectedPoint]:
    """Expected figures of plans that were not compiled: those between the compiled ends that keep the order."""
    errors = sorted((_model_error(c) for c in compiled), key=lambda each: each.predicted_bytes)
    known = {candidate.plan for candidate in compiled}
    largest_bytes, least_s = compiled[-1].footprint.total_bytes, compiled_step_s(compiled[-1])
    last = ExpectedPoint(total_bytes=compiled[0].footprint.total_bytes, step_s=compiled_step_s(compiled[0]))
    for plan in asked:
        expected = plan.predicted
        error_bytes, error_s = _interpolated(errors, expected.total_bytes)
        point = ExpectedPoint(total_bytes=expected.total_bytes + error_bytes, step_s=expected.step_s + error_s)
        inside = last.total_bytes < point.total_bytes < largest_bytes and least_s < point.step_s < last.step_s
        if inside and plan not in known:
            last = point
            yield point


def _model_error(candidate: CompiledPlan) -> _ModelError:
    expected = candidate.plan.predicted
    return _ModelError(
        predicted_bytes=expected.total_bytes,
        error_bytes=candidate.footprint.total_bytes - expected.total_bytes,
        error_s=compiled_step_s(candidate) - expected.step_s,
    )


def _interpolated(errors: Sequence[_ModelError], total_bytes: int) -> tuple[int, float]:
    """The model's error at a total, interpolated."""
    below = [each for each in errors if each.predicted_bytes <= total_bytes] or errors[:1]
    above = [each for each in errors if each.predicted_bytes >= total_bytes] or errors[-1:]
    low, high = below[-1], above[0]
    span = high.predicted_bytes - low.predicted_bytes
    share = (total_bytes - low.predicted_bytes) / span if span else 0.0
    error_bytes = low.error_bytes + share * (high.error_bytes - low.error_bytes)
    return int(error_bytes), low.error_s + share * (high.error_s - low.error_s)
