"""Local search (hill climbing): a plan is changed in one place at a time, as long as that improves it.

On a small graph there is time for more than the composition of stages considers. One change saves one value more or
less, or adds or removes one cut; values that cross a new cut are saved. A replay judges every change. Complexity: a
fixed number of op runs (`Effort.op_runs`) for any graph, so large graphs are not searched. Read after
`jaxckpt.solve.stages`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from jaxckpt.ir import GraphPlan, Save
from jaxckpt.solve.problem import Problem, decisions_saving
from jaxckpt.solve.stages import StageStarts, boundaries


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The saved values, the cut, and the residuals without a decision."""

    saved: frozenset[int]
    stages: StageStarts
    untouched: frozenset[int]


def improve_locally(problem: Problem, plan: GraphPlan, temp_budget_bytes: int | None) -> GraphPlan:
    """The plan after all single changes that improve its time within a budget, or its memory without one.

    The same plan if the graph is too large for the problem's effort, or if the plan offloads or shards values without a
    required decision.
    """
    left = problem.effort.op_runs // max(1, len(problem.graph.ops))
    if left < problem.effort.fewest_replays or problem.moves(plan):
        return plan
    state = _State(
        saved=frozenset(v for v, decision in plan.decisions.items() if isinstance(decision, Save)),
        stages=plan.stages,
        untouched=problem.read_after_forward - frozenset(plan.decisions) - problem.graph.results,
    )
    plan, rank = _judged(problem, state, plan.strategy, temp_budget_bytes)
    tried = {state}
    changes = _changes(problem, state)
    while left:
        changed = next((each for each in changes if each not in tried), None)
        if changed is None:
            break
        left -= 1
        tried.add(changed)
        other, other_rank = _judged(problem, changed, plan.strategy, temp_budget_bytes)
        if other_rank < rank:
            plan, rank, changes = other, other_rank, _changes(problem, changed)
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


def _changes(problem: Problem, state: _State) -> Iterator[_State]:
    """All states one change away: the largest values first, then cuts in order."""
    saved, stages, untouched = state.saved, state.stages, state.untouched
    larger = sorted(problem.worth_saving & problem.needed, key=lambda v: (-problem.graph.residual_bytes(v), v))
    for value in larger:
        if value in saved and value not in problem.never_recomputed:
            yield replace(state, saved=saved - {value})
        elif value not in saved:
            yield replace(state, saved=saved | {value}, untouched=untouched - {value})
    for start in stages[1:]:
        yield replace(state, stages=tuple(s for s in stages if s != start))
    for start in problem.graph.forward[1:]:
        if start not in stages:
            finer = tuple(sorted((*stages, start)))
            yield replace(state, stages=finer)
            crossing = saved | boundaries(problem, finer)
            yield _State(saved=crossing, stages=finer, untouched=untouched - crossing)
