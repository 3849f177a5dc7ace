"""A plan is changed in one place at a time, as long as that makes it faster within its memory.

What solvers compose of stages looks at a few cuts and a few options; on a small graph there is time to look further.
A change keeps a value more or less, or cuts the forward pass in one place more or less; what crosses a new cut is
kept. The replay judges every change. It is a local search: it never makes a plan worse, and need not find the best.

Read after `stages`. Complexity: a fixed number of op runs, whatever the graph; large graphs get no change.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from jaxckpt.ir import GraphPlan, Save
from jaxckpt.solve.problem import Problem, decisions_saving
from jaxckpt.solve.stages import StageStarts, boundaries

_OP_RUNS = 60_000
"""Ops of a graph times replays."""
_FEWEST = 20
"""With fewer replays than this it is not worth beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """What is kept, where the forward pass is cut, and which residuals are left to the compiler."""

    saved: frozenset[int]
    stages: StageStarts
    untouched: frozenset[int]


def improve_locally(
    problem: Problem, plan: GraphPlan, temp_budget_bytes: int | None, *, share: float = 1.0
) -> GraphPlan:
    """The plan after all single changes that make it better.

    Args:
      problem: The step.
      plan: Where to begin: one that saves, recomputes, or leaves residuals untouched.
      temp_budget_bytes: What temporaries may take; None asks for the least memory instead of the least time.
      share: How much of the usual search there is time for.

    Returns:
      A plan that is no worse; the same one where nothing helps, where the graph is too large to try, or where it keeps
      values on the host or as shards by choice.
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
"""Less is better: bytes over the budget, then seconds, then all that is alive, the most first."""


def _judged(problem: Problem, state: _State, strategy: str, temp_budget_bytes: int | None) -> tuple[GraphPlan, _Rank]:
    """The plan of a state with its rank; without a budget seconds do not count."""
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
    """All states one step away: the largest values first, cuts in order."""
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
            kept = saved | boundaries(problem, finer)
            yield _State(saved=kept, stages=finer, untouched=untouched - kept)
