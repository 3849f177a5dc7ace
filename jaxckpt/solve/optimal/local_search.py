"""Local search (hill climbing): a plan is changed in one place at a time, as long as that improves it.

On a small graph there is time for more than the composition of stages considers. One change saves one value more or
less, or adds or removes one cut; values that cross a new cut are saved. A replay judges every change. Decisions are
changed in turn, again and again, until none of them improves the plan, then cuts. Begun anew with each improvement, the
first changes would take all replays. At the end clones that gain nothing are removed, stage by stage.
Complexity: a fixed number of op runs (`Effort.op_runs`) for any graph, and one replay for each stage, so large graphs
are not searched. Read after `jaxckpt.solve.stages`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from jaxckpt.ir import GraphPlan, Prediction, Save
from jaxckpt.schedule import Schedule, ScheduleStep
from jaxckpt.solve.problem import Problem, decisions_saving
from jaxckpt.solve.stages import StageStarts, boundaries, members


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The saved values, the cut, and the residuals without a decision."""

    saved: frozenset[int]
    stages: StageStarts
    untouched: frozenset[int]


_Change = Callable[[_State], Iterator[_State]]
"""Gives the states that differ from one in one place."""


class LocalSearch:
    """Searches from any plan of one problem; a state that several searches come to is replayed once.

    Searches for neighbouring budgets try mostly the same states: those for one plan of `lstm-1` of
    `benchmarks.strangers` tried 2,616, of which 1,320 were different.
    """

    def __init__(self, problem: Problem):
        self.problem = problem
        self._replays = problem.effort.op_runs // max(1, len(problem.graph.ops))
        self._judged: dict[tuple[_State, str], tuple[GraphPlan, _Figures]] = {}
        self._figures: dict[tuple[ScheduleStep, ...], _Figures] = {}

    def improve(self, plan: GraphPlan, temp_budget_bytes: int | None) -> GraphPlan:
        """The plan after all single changes that improve its time within a budget, or its memory without one.

        The same plan if the graph is too large for the problem's effort, or if the plan offloads or shards values
        without a required decision.
        """
        if not self.applies or self.problem.moves(plan):
            return plan
        problem, left, state = self.problem, self._replays, self._state_of(plan)
        plan, figures = self._judge(state, plan.strategy)
        rank = figures.rank(temp_budget_bytes)
        tried = {state}
        decisions, cuts = self._other_decisions(state, temp_budget_bytes, figures), _other_cuts(problem, state)
        changes, at, unimproved = [*decisions, *cuts], 0, 0
        while left > 0 and unimproved < len(changes):
            unimproved += 1
            for changed in changes[at](state):
                if changed in tried:
                    continue
                left -= 1
                tried.add(changed)
                other, figures = self._judge(changed, plan.strategy)
                if (other_rank := figures.rank(temp_budget_bytes)) < rank:
                    state, plan, rank, unimproved = changed, other, other_rank, 0
                    break
            at += 1
            repeats_decisions = unimproved < len(decisions)
            if at == len(changes) or (at >= len(decisions) and repeats_decisions):
                at = 0
        return self._without_needless_clones(state, plan)

    def nearest(self, plan: GraphPlan, temp_budget_bytes: int) -> GraphPlan:
        """The fastest plan within a budget that differs from a plan in one place, else the one of least memory.

        The same plan where `improve` gives the same plan.
        """
        if not self.applies or self.problem.moves(plan):
            return plan
        state = self._state_of(plan)
        _, figures = self._judge(state, plan.strategy)
        decisions = self._other_decisions(state, temp_budget_bytes, figures)
        changes = (*decisions, *_other_cuts(self.problem, state))
        states = islice((changed for change in changes for changed in change(state)), self._replays)
        judged = (self._judge(changed, plan.strategy) for changed in states)
        return min(judged, key=lambda each: each[1].rank(temp_budget_bytes), default=(plan, None))[0]

    def _other_decisions(self, begin: _State, temp_budget_bytes: int | None, figures: "_Figures") -> list[_Change]:
        """For each residual and each boundary of the first state the change of its decision, the best guess first.

        A graph of hundreds of ops has some hundred replays, fewer than there are changes. From a state within a budget,
        values whose kernels take longest are saved first, then values whose kernels take the least time for their bytes
        are recomputed; from one above the budget, the other way round. Without a budget the largest values come first.
        """
        problem, size_bytes = self.problem, self.problem.graph.residual_bytes
        values = problem.worth_saving & (problem.needed | begin.saved)
        if temp_budget_bytes is None:
            ordered = sorted(values, key=lambda v: (-size_bytes(v), v))
        else:
            kernel_s = {v: problem.op_s[op] for v in values if (op := problem.graph.producer[v]) is not None}
            added = sorted(values - begin.saved, key=lambda v: (-kernel_s[v], -size_bytes(v), v))
            removed = sorted(values & begin.saved, key=lambda v: (kernel_s[v] / max(1, size_bytes(v)), v))
            fits = figures.prediction.temp_bytes <= temp_budget_bytes
            ordered = [*added, *removed] if fits else [*removed, *added]
        return [partial(_with_other_decision, problem, value) for value in ordered]

    @property
    def applies(self) -> bool:
        """False if the graph is too large for the problem's effort."""
        return self._replays >= self.problem.effort.fewest_replays

    def _state_of(self, plan: GraphPlan) -> _State:
        return _State(
            saved=frozenset(v for v, decision in plan.decisions.items() if isinstance(decision, Save)),
            stages=plan.stages,
            untouched=self.problem.read_after_forward - frozenset(plan.decisions) - self.problem.graph.results,
        )

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
            problem = self.problem
            decisions = decisions_saving(problem, state.saved, state.untouched)
            plan, schedule = problem.plan_and_schedule(decisions, state.stages, strategy)
            if schedule.steps not in self._figures:
                self._figures[schedule.steps] = _figures(problem, plan, schedule)
            figures = self._figures[schedule.steps]
            prediction = replace(figures.prediction, saved_bytes=problem.saved_bytes(plan))
            self._judged[key] = replace(plan, prediction=prediction), figures
        return self._judged[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figures:
    """The prediction of a schedule, and the live bytes of all its steps, the largest first."""

    prediction: Prediction
    alive_bytes: tuple[int, ...]

    def rank(self, temp_budget_bytes: int | None) -> tuple[float, float, tuple[int, ...]]:
        """Less is better: bytes over the budget, then seconds, then live bytes; without a budget bytes alone."""
        temp_bytes = self.prediction.temp_bytes
        if temp_budget_bytes is None:
            return temp_bytes, 0.0, self.alive_bytes
        return max(0, temp_bytes - temp_budget_bytes), self.prediction.step_s, self.alive_bytes


def _figures(problem: Problem, plan: GraphPlan, schedule: Schedule) -> _Figures:
    replayed = problem.replay_schedule(schedule)
    alive_bytes = tuple(sorted(replayed.live_bytes, reverse=True))
    return _Figures(prediction=problem.prediction(plan, schedule, replayed), alive_bytes=alive_bytes)


def _other_cuts(problem: Problem, begin: _State) -> list[_Change]:
    """For each cut of the first state its removal, then for each other place of a cut its addition."""
    starts = sorted(problem.graph.forward[1:], key=lambda start: (start not in begin.stages, start))
    return [partial(_with_other_cut, problem, start) for start in starts]


def _with_other_decision(problem: Problem, value: int, state: _State) -> Iterator[_State]:
    if value not in state.saved:
        yield replace(state, saved=state.saved | {value}, untouched=state.untouched - {value})
    elif value not in problem.never_recomputed:
        yield replace(state, saved=state.saved - {value})


def _with_other_cut(problem: Problem, start: int, state: _State) -> Iterator[_State]:
    if start in state.stages:
        yield replace(state, stages=tuple(s for s in state.stages if s != start))
        return
    finer = tuple(sorted((*state.stages, start)))
    yield replace(state, stages=finer)
    crossing = state.saved | boundaries(problem, finer)
    yield _State(saved=crossing, stages=finer, untouched=state.untouched - crossing)
