"""Where one decision for all turns leaves memory unused, the last turns of a loop get the decisions of a larger plan.

A residual of a loop's body waits once for every turn, so plans with the same decisions everywhere come in steps of a
residual times its turns. Between two of them lies the plan that takes the decisions of the smaller one for the first
turns and those of the larger, faster one for the rest: the loop and its backward are split into two stretches. The
turns that run last in the forward pass run first in the backward, when most is waiting; what they keep, they need not
compute again at that moment.

Of two compiled plans the bytes and seconds of their mixture are known well: they lie between those of the two, by the
turns that each has. So a pair is chosen by what the compiler said; how many turns the larger plan gets, the replay of
the split step says, corrected by how far it was off for the two. Read after `jaxckpt.solve` and
`jaxckpt.rewrite.split_loops`; `search` asks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from jaxckpt.ir import Decision, GraphPlan, LoopSplit, Recompute, Save
from jaxckpt.rewrite import SplitStep, loops_split_together, with_split_loops
from jaxckpt.solve import OptimalSolver, Problem
from jaxckpt.trace import Traced

_GROWTH = 1.25
"""Budgets for which larger plans are asked, each this times the one before."""
_ASKED = 4
"""How many of these, from the budget up."""
_FASTER = 0.999
"""A mixture is compiled if it is expected to take at most this share of the best plan's seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFigures:
    """What is known of a plan.

    Attributes:
      plan: The plan.
      total_bytes: Its compiled total, or what is expected of it.
      step_s: Its compiled seconds, or what is expected.
    """

    plan: GraphPlan
    total_bytes: int
    step_s: float

    @property
    def off_bytes(self) -> int:
        """How many bytes the model's figure was too small."""
        return self.total_bytes - self.plan.predicted.total_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MixPoint:
    """A mixture of two plans, or one of the two themselves.

    Attributes:
      turns: How many have the decisions of the larger plan.
      known: What is known of it.
    """

    turns: int
    known: PlanFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """Two plans with the same decisions for all turns, and what is known of their mixtures.

    Attributes:
      small: Is within the budget.
      large: Is not, and is faster.
      fits: The mixture of most turns that is known to be within the budget.
      over: The mixture of fewest turns that is known not to be.
    """

    small: GraphPlan
    large: GraphPlan
    fits: MixPoint
    over: MixPoint

    def with_known(self, end: MixPoint, limit_bytes: int) -> "Bracket":
        """The same with one more mixture compiled."""
        return replace(self, fits=end) if end.known.total_bytes <= limit_bytes else replace(self, over=end)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Loops that are split together.

    Attributes:
      loops: Their ids.
      turns: How many each of them makes.
      reverse: Whether the forward pass begins with the last slice.
    """

    loops: tuple[int, ...]
    turns: int
    reverse: bool

    def loop_splits(self, last: int) -> LoopSplit:
        """Two stretches, the one that runs last in the forward pass of so many turns."""
        lengths = (last, self.turns - last) if self.reverse else (self.turns - last, last)
        return LoopSplit(loop=self.loops[0], lengths=lengths)


class LoopSplitter:
    """Plans of one step that decide differently for the last turns of its loops.

    Args:
      traced: The step.
      solver: For plans with the same decisions for all turns.
    """

    def __init__(self, traced: Traced, solver: OptimalSolver):
        self._traced = traced
        self._solver = solver
        self._problem = solver.problem
        self._larger: dict[int, GraphPlan] = {}
        self._split: dict[LoopSplit, tuple[SplitStep, Problem]] = {}

    @cached_property
    def turns(self) -> int:
        """The turns of all loops that can be split; 0 where there is none."""
        return sum(group.turns for group in self._groups)

    def pair(self, compiled: Sequence[PlanFigures], limit_bytes: int) -> Bracket | None:
        """The two plans whose mixture is expected to be the fastest one within a budget.

        Args:
          compiled: What was compiled so far, at least one of it within the budget.
          limit_bytes: The budget.

        Returns:
          A pair; None where no mixture is expected to be faster than the best plan that was compiled.
        """
        plain = [each for each in compiled if _is_plain(each.plan) and each.plan.prediction is not None]
        small = [each for each in plain if each.total_bytes <= limit_bytes and not each.plan.loop_splits]
        if not self.turns or not small:
            return None
        best_s = _FASTER * min(each.step_s for each in compiled if each.total_bytes <= limit_bytes)
        large = [each for each in plain if each.total_bytes > limit_bytes and not each.plan.loop_splits]
        if not any(each.step_s < best_s for each in large):
            nearest = max(small, key=lambda each: each.total_bytes)
            asked = self._expected(nearest, limit_bytes)
            large = [each for each in asked if all(each.plan != other.plan for other in compiled)]
        guessed = {
            (one, other): guess_s
            for one in small
            for other in large
            if (guess_s := _guessed_s(one, other, limit_bytes)) < best_s
        }
        if not guessed:
            return None
        one, other = min(guessed, key=lambda pair: guessed[pair])
        fits, over = MixPoint(turns=0, known=one), MixPoint(turns=self.turns, known=other)
        return Bracket(small=one.plan, large=other.plan, fits=fits, over=over)

    def filled(self, pair: Bracket, limit_bytes: int) -> tuple[int, GraphPlan] | None:
        """The mixture with most turns of the larger plan that is expected to be within a budget, and these turns.

        None where one turn more than is known to fit is expected not to. Between the most turns expected to fit and the
        fewest expected not to, the next are guessed by their bytes.
        """
        (fits, fits_bytes), (over, over_bytes) = ((e.turns, e.known.total_bytes) for e in (pair.fits, pair.over))
        best: tuple[int, GraphPlan] | None = None
        while over - fits > 1:
            share = (limit_bytes - fits_bytes) / max(1, over_bytes - fits_bytes)
            turns = min(over - 1, max(fits + 1, fits + int((over - fits) * share)))
            plan = self._of_turns(pair, turns)
            expected_bytes = plan.predicted.total_bytes + _off_bytes(pair, turns)
            if expected_bytes <= limit_bytes:
                best, fits, fits_bytes = (turns, plan), turns, expected_bytes
            else:
                over, over_bytes = turns, expected_bytes
        return best

    def _expected(self, nearest: PlanFigures, limit_bytes: int) -> Iterator[PlanFigures]:
        """Larger plans that were not compiled: the model is off for them as it was for a compiled one."""
        fixed_bytes = nearest.plan.predicted.total_bytes - nearest.plan.predicted.temp_bytes
        asked_bytes = float(self._solver.min_memory_plan.predicted.temp_bytes)
        while asked_bytes <= limit_bytes - nearest.off_bytes - fixed_bytes:
            asked_bytes *= _GROWTH
        for _ in range(_ASKED):
            if int(asked_bytes) not in self._larger:
                self._larger[int(asked_bytes)] = self._solver.solve(int(asked_bytes))
            plan = self._larger[int(asked_bytes)]
            asked_bytes *= _GROWTH
            total_bytes = plan.predicted.total_bytes + nearest.off_bytes
            if _is_plain(plan) and total_bytes > limit_bytes:
                slower = nearest.step_s / nearest.plan.predicted.step_s
                yield PlanFigures(plan=plan, total_bytes=total_bytes, step_s=slower * plan.predicted.step_s)

    @cached_property
    def _groups(self) -> tuple[_Group, ...]:
        """Loops that can be split, those whose turns leave most first; loops inside of others that are, not."""
        graph = self._traced.graph
        found: list[_Group] = []
        for loops in loops_split_together(self._traced):
            first = next(loop for loop in loops if loop not in graph.loops_after_forward)
            if not any(around in group.loops for group in found for around in graph.path(first)):
                found.append(_Group(loops=loops, turns=graph.loops[first].length, reverse=graph.loops[first].reverse))
        return tuple(sorted(found, key=lambda group: -self._left_bytes(group)))

    def _left_bytes(self, group: _Group) -> int:
        graph, problem = self._traced.graph, self._problem
        left = problem.needed & problem.worth_saving
        return sum(graph.residual_bytes(v) for v in left if not self._around(v).isdisjoint(group.loops))

    def _around(self, value: int) -> frozenset[int]:
        graph = self._traced.graph
        made = graph.producer[value]
        return frozenset(() if made is None else graph.path(graph.ops[made].loop))

    def _of_turns(self, pair: Bracket, turns: int) -> GraphPlan:
        """The plan that takes the larger one's decisions for so many turns: of the first loops, then of the next."""
        large: set[int] = set()
        loop_splits: tuple[LoopSplit, ...] = ()
        for group in self._groups:
            if turns >= group.turns:
                large.update(group.loops)
            elif turns > 0:
                loop_splits = (group.loop_splits(turns),)
                large.update(group.loops)
            turns -= group.turns
        plan = self._combined(pair, frozenset(large), loop_splits)
        return replace(plan, fingerprint=self._traced.graph.fingerprint, loop_splits=loop_splits)

    def _combined(self, pair: Bracket, large: frozenset[int], loop_splits: Sequence[LoopSplit]) -> GraphPlan:
        """A mixture: the larger plan's decisions in some loops, in one that is split for the last turns alone."""
        split, problem = self._in(loop_splits)
        reverse = any(loop_splits[0].loop in group.loops and group.reverse for group in self._groups if loop_splits)

        def taken(loops: frozenset[int], copies: Sequence[int]) -> Iterator[tuple[GraphPlan, int]]:
            """Whose decisions hold for the copies of a value or an op."""
            last = 0 if reverse or len(copies) < 2 else len(copies) - 1
            for index, copy in enumerate(copies):
                yield (pair.large if not loops.isdisjoint(large) and index == last else pair.small), copy

        decisions: dict[int, Decision] = {}
        for value, copies in enumerate(split.values):
            for plan, copy in taken(self._around(value), copies):
                if (decision := plan.decisions.get(value)) is not None:
                    decisions[copy] = decision
        graph = self._traced.graph
        stages = {0}
        for op, copies in enumerate(split.ops):
            stages.update(
                copy for plan, copy in taken(frozenset(graph.path(graph.ops[op].loop)), copies) if op in plan.stages
            )
        stages.update(self._beginnings(split))
        return problem.plan(decisions, tuple(sorted(stages)), "optimal")

    def _beginnings(self, split: SplitStep) -> Iterator[int]:
        """The first op of each stretch."""
        seen: set[int] = set()
        for op in split.traced.graph.ops:
            opened = None if op.loop is None else split.traced.program.loops[op.loop]
            if opened is not None and opened.offset is not None and op.loop not in seen:
                seen.add(op.loop)
                yield op.id

    def _in(self, loop_splits: Sequence[LoopSplit]) -> tuple[SplitStep, Problem]:
        """The split step, and the problem that it is."""
        if not loop_splits:
            return with_split_loops(self._traced, ()), self._problem
        (only,) = loop_splits
        if only not in self._split:
            split = with_split_loops(self._traced, loop_splits)
            required = {copy: d for value, d in self._problem.required.items() for copy in split.values[value]}
            self._split[only] = split, replace(self._problem, graph=split.traced.graph, required=required)
        return self._split[only]


def _is_plain(plan: GraphPlan) -> bool:
    """Whether a plan only saves and recomputes, in loops that are not nested."""
    return not plan.loop_tilings and all(isinstance(decision, Save | Recompute) for decision in plan.decisions.values())


def _guessed_s(small: PlanFigures, large: PlanFigures, limit_bytes: int) -> float:
    """Seconds of the mixture of two plans that takes all of a budget."""
    share = (limit_bytes - small.total_bytes) / (large.total_bytes - small.total_bytes)
    return small.step_s + share * (large.step_s - small.step_s)


def _off_bytes(pair: Bracket, turns: int) -> int:
    """How many bytes the model's figure of a mixture is expected to be too small."""
    fits, over = pair.fits, pair.over
    share = (turns - fits.turns) / (over.turns - fits.turns)
    return int(fits.known.off_bytes + share * (over.known.off_bytes - fits.known.off_bytes))
