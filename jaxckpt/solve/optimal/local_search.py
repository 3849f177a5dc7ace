"""Local search (hill climbing): a plan is changed in one place at a time, as long as that improves it.

The composition of stages considers a few cuts and a few options; on a small graph there is time for more. One change
saves one value more or less, or adds or removes one cut; values that cross a new cut are saved. A replay judges every
change. The search never makes a plan worse, and need not find the best.

Read after `jaxckpt.solve.stages`. Complexity: a fixed number of op runs for any graph, so large graphs are not
searched.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from jaxckpt.ir import GraphPlan, Save
from jaxckpt.solve.problem import Problem, decisions_saving
from jaxckpt.solve.stages import StageStarts, boundaries

_OP_RUNS = 60_000
"""Bound of ops times replays, and so of the seconds of a search. No benchmark fixed the exact value."""
_FEWEST = 20
"""With fewer replays than this the search does not start: it would see a few of the changes only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The saved values, the cut, and the residuals without a decision."""

    saved: frozenset[int]
    stages: StageStarts
    untouched: frozenset[int]


def improve_locally(
    problem: Problem, plan: GraphPlan, temp_budget_bytes: int | None, *, share: float = 1.0
) -> GraphPlan:
    """The plan after all single changes that improve it.

    Args:
      problem: The step.
      plan: The start of the search: a plan that saves, recomputes, or leaves residuals untouched.
      temp_budget_bytes: Budget of temporaries; None minimises memory instead of time.
      share: Share of the problem's search effort that this plan gets.

    Returns:
      A plan that is no worse; the same plan if the graph is too large to search, or if the plan offloads or shards
      values without a required decision.
    """
    left = int(share * problem.search_effort * _OP_RUNS) // max(1, len(problem.graph.ops))
    if left < _FEWEST or problem.moves(plan):
        return plan
    state = _state(problem, plan)
    plan, rank = _judged(problem, state, plan.strategy, temp_budget_bytes)
    tried = {state}
    improved = True
    while improved:
        improved = False
        for changed in _changes(problem, state):
            if changed in tried:
                continue
            if not left:
                return plan
            left -= 1
            tried.add(changed)
            other, other_rank = _judged(problem, changed, plan.strategy, temp_budget_bytes)
            if other_rank < rank:
                plan, rank, state, improved = other, other_rank, changed, True
                break
    return plan


_Rank = tuple[float, float, list[int]]
"""Less is better: bytes over the budget, then seconds, then live bytes of all steps, the largest first."""


def _judged(problem: Problem, state: _State, strategy: str, temp_budget_bytes: int | None) -> tuple[GraphPlan, _Rank]:
    """The plan of a state with its rank; seconds do not count without a budget."""
    decisions = decisions_saving(problem, state.saved, state.untouched)
    plan, replay = problem.plan_and_replay(decisions, state.stages, strategy)
    alive = sorted(replay.live_bytes, reverse=True)
    if temp_budget_bytes is None:
        return plan, (0.0, 0.0, alive)
    return plan, (max(0, replay.peak_bytes - temp_budget_bytes), replay.step_s, alive)


def _state(problem: Problem, plan: GraphPlan) -> _State:
    return _State(
        saved=frozenset(v for v, decision in plan.decisions.items() if isinstance(decision, Save)),
        stages=plan.stages,
        untouched=problem.read_after_forward - frozenset(plan.decisions) - problem.graph.results,
    )


def _changes(problem: Problem, state: _State) -> Iterator[_State]:
    """All states one change away: the largest values first, then cuts in order."""
    saved, stages, untouched = state.saved, state.stages, state.untouched
    larger = sorted(problem.worth_saving & problem.needed, key=lambda v: (-problem.graph.residual_bytes(v), v))
    for value in larger:
        if value in saved and value not in problem.never_recomputed:
            yield _State(saved=saved - {value}, stages=stages, untouched=untouched)
        elif value not in saved:
            yield _State(saved=saved | {value}, stages=stages, untouched=untouched - {value})
    for start in stages[1:]:
        yield _State(saved=saved, stages=tuple(s for s in stages if s != start), untouched=untouched)
    for start in problem.graph.forward[1:]:
        if start not in stages:
            finer = tuple(sorted((*stages, start)))
            yield _State(saved=saved, stages=finer, untouched=untouched)
            crossing = saved | boundaries(problem, finer)
            yield _State(saved=crossing, stages=finer, untouched=untouched - crossing)
