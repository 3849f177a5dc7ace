"""Local search (hill climbing): a plan is changed in one place at a time, as long as that improves it.

On a small graph there is time for more than the composition of stages considers. One change saves one value more or
less, or adds or removes one cut; values that cross a new cut are saved. A replay judges every change. At the end clones
that gain nothing are removed, stage by stage. Complexity: a fixed number of op runs (`Effort.op_runs`) for any graph,
and one replay for each stage, so large graphs are not searched. Read after `jaxckpt.solve.stages`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from jaxckpt.ir import GraphPlan, Save
from jaxckpt.solve.problem import Problem, decisions_saving
from jaxckpt.solve.stages import StageStarts, boundaries, members


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The saved values, the cut, and the residuals without a decision."""

    saved: frozenset[int]
    stages: StageStarts
    untouched: frozenset[int]


class LocalSearch:
    """Searches from any plan of one problem; a state that several searches come to is replayed once.

    Searches for neighbouring budgets try mostly the same states: those for one plan of `lstm-1` of
    `benchmarks.strangers` tried 2,616, of which 1,320 were different.
    """

    def __init__(self, problem: Problem):
        self.problem = problem
        self._replays = problem.effort.op_runs // max(1, len(problem.graph.ops))
        self._judged: dict[tuple[_State, str], tuple[GraphPlan, _Figures]] = {}

    def improve(self, plan: GraphPlan, temp_budget_bytes: int | None) -> GraphPlan:
        """The plan after all single changes that improve its time within a budget, or its memory without one.

        The same plan if the graph is too large for the problem's effort, or if the plan offloads or shards values
        without a required decision.
        """
        problem, left = self.problem, self._replays
        if left < problem.effort.fewest_replays or problem.moves(plan):
            return plan
        state = _State(
            saved=frozenset(v for v, decision in plan.decisions.items() if isinstance(decision, Save)),
            stages=plan.stages,
            untouched=problem.read_after_forward - frozenset(plan.decisions) - problem.graph.results,
        )
        plan, figures = self._judge(state, plan.strategy)
        rank = figures.rank(temp_budget_bytes)
        tried = {state}
        changes = _changes(problem, state)
        while left:
            changed = next((each for each in changes if each not in tried), None)
            if changed is None:
                break
            left -= 1
            tried.add(changed)
            other, figures = self._judge(changed, plan.strategy)
            if (other_rank := figures.rank(temp_budget_bytes)) < rank:
                state, plan, rank, changes = changed, other, other_rank, _changes(problem, changed)
        return self._without_needless_clones(state, plan)

    def _without_needless_clones(self, state: _State, plan: GraphPlan) -> GraphPlan:
        """The plan without the clones of each stage that make it neither smaller nor faster, from the last stage on.

        The backward of the last stage follows at once, so its clones mostly free nothing. What is left as it is written
        the compiler can still fuse: the smallest plan of `lstm-language-model` of `benchmarks.strangers`, 3,567 MiB by
        the model with or without clones of the head, compiles to 4,818 MiB with them and to 3,612 without.
        """
        graph, residuals = self.problem.graph, self.problem.read_after_forward - self.problem.graph.results
        for ops in reversed(members(graph, state.stages)):
            made = residuals.intersection(v for op in ops for v in graph.ops[op].writes)
            other = replace(state, untouched=state.untouched | (made - state.saved))
            changed, _ = self._judge(other, plan.strategy)
            is_slower = changed.predicted.step_s > plan.predicted.step_s
            if not is_slower and changed.predicted.temp_bytes <= plan.predicted.temp_bytes:
                state, plan = other, changed
        return plan

    def _judge(self, state: _State, strategy: str) -> "tuple[GraphPlan, _Figures]":
        """The plan of a state with its figures."""
        key = state, strategy
        if key not in self._judged:
            decisions = decisions_saving(self.problem, state.saved, state.untouched)
            plan, replay = self.problem.plan_and_replay(decisions, state.stages, strategy)
            alive = tuple(sorted(replay.live_bytes, reverse=True))
            self._judged[key] = plan, _Figures(step_s=replay.step_s, alive_bytes=alive)
        return self._judged[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figures:
    """Seconds of a plan, and live bytes of all its steps, the largest first."""

    step_s: float
    alive_bytes: tuple[int, ...]

    def rank(self, temp_budget_bytes: int | None) -> tuple[float, float, tuple[int, ...]]:
        """Less is better: bytes over the budget, then seconds, then live bytes; without a budget live bytes alone."""
        if temp_budget_bytes is None:
            return 0.0, 0.0, self.alive_bytes
        return max(0, max(self.alive_bytes, default=0) - temp_budget_bytes), self.step_s, self.alive_bytes


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
