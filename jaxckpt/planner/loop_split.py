"""Splits loops, so that the last iterations take the decisions of a larger plan (index-set splitting).

A residual of a loop's body is saved once for every iteration, so plans with the same decisions for all iterations come
in steps of a residual times its trip count. Between two of them lies a mixture: the decisions of the smaller plan for
the first iterations, and those of the larger, faster one for the rest. The loop and its backward are each split into
two. The iterations that run last in the forward pass run first in the backward, when most residuals are live; what
these iterations save need not be recomputed at that moment.

Bytes and seconds of a mixture lie between those of its two plans, in proportion to the iterations. So a pair of plans
is chosen by compiled figures. How many iterations the larger plan gets follows from the replay of the split step,
corrected by the model errors of the two plans.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from jaxckpt.ir import Decision, GraphPlan, LoopSplit, Recompute, Save
from jaxckpt.planner.limits import Limits
from jaxckpt.rewrite.split_loops import SplitStep, loops_split_together, with_split_loops
from jaxckpt.solve import OptimalSolver, Problem
from jaxckpt.trace import Traced

_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFigures:
    """Bytes and seconds of a plan, compiled or expected."""

    plan: GraphPlan
    total_bytes: int
    step_s: float

    @property
    def model_error_bytes(self) -> int:
        """The total minus the predicted total: positive where the model predicts too little."""
        return self.total_bytes - self.plan.predicted.total_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MixPoint:
    """A mixture in which so many iterations have the decisions of the larger plan: from none to all."""

    iterations: int
    figures: PlanFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """Two plans with the same decisions for all iterations, and two of their mixtures around the budget."""

    small: GraphPlan  # the plan that is within the budget
    large: GraphPlan  # the plan that is not, and is faster
    fits: MixPoint  # the mixture of most iterations that is known to be within the budget
    over: MixPoint  # the mixture of fewest iterations that is known not to be

    def narrowed(self, point: MixPoint, limit_bytes: int) -> "Bracket":
        """The bracket with a further compiled mixture as one of its ends."""
        return replace(self, fits=point) if point.figures.total_bytes <= limit_bytes else replace(self, over=point)

    def model_error_bytes(self, iterations: int) -> int:
        """Expected model error of a mixture: interpolated between the two ends."""
        fits, over = self.fits, self.over
        share = (iterations - fits.iterations) / (over.iterations - fits.iterations)
        below, above = fits.figures.model_error_bytes, over.figures.model_error_bytes
        return int(below + share * (above - below))

    def step_s(self, iterations: int) -> float:
        """Expected seconds of a mixture: interpolated between the two ends."""
        fits, over = self.fits, self.over
        share = (iterations - fits.iterations) / (over.iterations - fits.iterations)
        return fits.figures.step_s + share * (over.figures.step_s - fits.figures.step_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoopGroup:
    """Loops of one trip count that are split together; if `reverse`, the forward pass begins with the last slice."""

    loops: tuple[int, ...]
    trip_count: int
    reverse: bool

    def loop_split(self, last: int) -> LoopSplit:
        """Splits off the iterations that run last in the forward pass, so many of them."""
        lengths = (last, self.trip_count - last) if self.reverse else (self.trip_count - last, last)
        return LoopSplit(loop=self.loops[0], lengths=lengths)


class LoopSplitter:
    """Mixes plans of one solver, which decides the same for all iterations: others for the last ones of its loops."""

    def __init__(self, traced: Traced, solver: OptimalSolver, limits: Limits = _LIMITS):
        self._traced = traced
        self._limits = limits
        self._solver = solver
        self._problem = solver.problem
        self._split: dict[LoopSplit, tuple[SplitStep, Problem]] = {}

    @cached_property
    def iterations(self) -> int:
        """The trip counts of all loops that can be split, added up; 0 where there is none."""
        return sum(group.trip_count for group in self._groups)

    def bracket(self, compiled: Sequence[PlanFigures], limit_bytes: int) -> Bracket | None:
        """Chooses the two plans whose mixture is expected to be the fastest one within a budget.

        One of the compiled plans is within the budget. None where no mixture is expected to be faster than the best.
        """
        # Complexity: which plans may be mixed, which of them are compiled, and whether a mixture is worth it.
        unsplit = [each for each in compiled if _is_mixable(each.plan) and not each.plan.loop_splits]
        small = [each for each in unsplit if each.total_bytes <= limit_bytes]
        if not self.iterations or not small:
            return None
        best_s = self._limits.faster * min(each.step_s for each in compiled if each.total_bytes <= limit_bytes)
        large = [each for each in unsplit if each.total_bytes > limit_bytes]
        if not any(each.step_s < best_s for each in large):
            large = list(self._uncompiled(compiled, small, limit_bytes))
        expected_s = {(one, other): _interpolated_s(one, other, limit_bytes) for one, other in product(small, large)}
        fastest = min(expected_s, key=lambda pair: expected_s[pair], default=None)
        if fastest is None or expected_s[fastest] >= best_s:
            return None
        one, other = fastest
        fits, over = MixPoint(iterations=0, figures=one), MixPoint(iterations=self.iterations, figures=other)
        return Bracket(small=one.plan, large=other.plan, fits=fits, over=over)

    def largest_feasible_mix(self, bracket: Bracket, limit_bytes: int) -> tuple[int, GraphPlan] | None:
        """The most iterations of the larger plan whose mixture is expected to be within a budget, and that mixture.

        None where no mixture within the bracket is expected to fit. Found by a secant search over iterations.
        """
        fits, fits_bytes = bracket.fits.iterations, bracket.fits.figures.total_bytes
        over, over_bytes = bracket.over.iterations, bracket.over.figures.total_bytes
        best: tuple[int, GraphPlan] | None = None
        while over - fits > 1:
            share = (limit_bytes - fits_bytes) / max(1, over_bytes - fits_bytes)
            iterations = min(over - 1, max(fits + 1, fits + int((over - fits) * share)))
            plan = self._mix(bracket, iterations)
            expected_bytes = plan.predicted.total_bytes + bracket.model_error_bytes(iterations)
            if expected_bytes <= limit_bytes:
                best, fits, fits_bytes = (iterations, plan), iterations, expected_bytes
            else:
                over, over_bytes = iterations, expected_bytes
        return best

    def _uncompiled(
        self, compiled: Sequence[PlanFigures], small: Sequence[PlanFigures], limit_bytes: int
    ) -> Iterator[PlanFigures]:
        """Larger plans that were not compiled, with the model error of the largest small one."""
        known = [each.plan for each in compiled]
        nearest = max(small, key=lambda each: each.total_bytes)
        fixed_bytes = nearest.plan.predicted.total_bytes - nearest.plan.predicted.temp_bytes
        asked_bytes = float(limit_bytes - nearest.model_error_bytes - fixed_bytes)
        for _ in range(self._limits.larger_plans):
            asked_bytes *= self._limits.growth
            plan = self._solver.solve(int(asked_bytes))
            total_bytes = plan.predicted.total_bytes + nearest.model_error_bytes
            if _is_mixable(plan) and total_bytes > limit_bytes and plan not in known:
                slower = nearest.step_s / nearest.plan.predicted.step_s
                yield PlanFigures(plan=plan, total_bytes=total_bytes, step_s=slower * plan.predicted.step_s)

    @cached_property
    def _groups(self) -> tuple[_LoopGroup, ...]:
        """Loops that can be split, those with most residuals first; none inside of another one that is split."""
        graph = self._traced.graph
        found: list[_LoopGroup] = []
        for loops in loops_split_together(self._traced):
            first = next(loop for loop in loops if loop not in graph.loops_after_forward)
            loop = graph.loops[first]
            if not any(outer in group.loops for group in found for outer in graph.path(first)):
                found.append(_LoopGroup(loops=loops, trip_count=loop.length, reverse=loop.reverse))
        residual_bytes: Counter[_LoopGroup] = Counter()
        for value in self._problem.needed & self._problem.worth_saving:
            for group in found:
                if not self._loops_of(value).isdisjoint(group.loops):
                    residual_bytes[group] += graph.residual_bytes(value)
        return tuple(sorted(found, key=lambda group: -residual_bytes[group]))

    def _loops_of(self, value: int) -> frozenset[int]:
        """The loops around the op that makes a value."""
        graph = self._traced.graph
        made = graph.producer[value]
        return frozenset(() if made is None else graph.path(graph.ops[made].loop))

    def _mix(self, bracket: Bracket, iterations: int) -> GraphPlan:
        """The plan with the larger one's decisions for so many iterations, of the first loops and then of the next."""
        large: set[int] = set()
        loop_splits: tuple[LoopSplit, ...] = ()
        for group in self._groups:
            if iterations >= group.trip_count:
                large.update(group.loops)
            elif iterations > 0:
                loop_splits = (group.loop_split(iterations),)
                large.update(group.loops)
            iterations -= group.trip_count
        plan = self._combined(bracket, frozenset(large), loop_splits)
        return replace(plan, fingerprint=self._traced.graph.fingerprint, loop_splits=loop_splits)

    def _combined(self, bracket: Bracket, large: frozenset[int], loop_splits: Sequence[LoopSplit]) -> GraphPlan:
        """A mixture: the larger plan's decisions in the loops of `large`; in a split loop, for the last part only."""
        split, problem = self._split_step(loop_splits)
        reverse = any(loop_splits[0].loop in group.loops and group.reverse for group in self._groups if loop_splits)

        def chosen(loops: frozenset[int], copies: Sequence[int]) -> Iterator[tuple[GraphPlan, int]]:
            """For each copy of a value or an op the plan that decides about it."""
            last = 0 if reverse or len(copies) < 2 else len(copies) - 1
            for index, copy in enumerate(copies):
                yield (bracket.large if not loops.isdisjoint(large) and index == last else bracket.small), copy

        decisions: dict[int, Decision] = {}
        for value, copies in enumerate(split.values):
            for plan, copy in chosen(self._loops_of(value), copies):
                if (decision := plan.decisions.get(value)) is not None:
                    decisions[copy] = decision
        graph = self._traced.graph
        stages = {0}
        for op, copies in enumerate(split.ops):
            loops = frozenset(graph.path(graph.ops[op].loop))
            stages.update(copy for plan, copy in chosen(loops, copies) if op in plan.stages)
        stages.update(self._first_ops(split))
        return problem.plan(decisions, tuple(sorted(stages)), "optimal")

    def _first_ops(self, split: SplitStep) -> Iterator[int]:
        """The first op of each part of a split loop."""
        seen: set[int] = set()
        for op in split.traced.graph.ops:
            if op.loop is None or op.loop in seen:
                continue
            if split.traced.program.loops[op.loop].offset is not None:
                seen.add(op.loop)
                yield op.id

    def _split_step(self, loop_splits: Sequence[LoopSplit]) -> tuple[SplitStep, Problem]:
        """The split step with its problem."""
        if not loop_splits:
            return with_split_loops(self._traced, ()), self._problem
        (only,) = loop_splits
        if only not in self._split:
            split = with_split_loops(self._traced, loop_splits)
            required = {copy: d for value, d in self._problem.required.items() for copy in split.values[value]}
            self._split[only] = split, replace(self._problem, graph=split.traced.graph, required=required)
        return self._split[only]


def _is_mixable(plan: GraphPlan) -> bool:
    """True if a plan has a prediction, only saves and recomputes, and leaves the loops and rows of the step."""
    if plan.prediction is None or any(plan.transformations) or plan.host_arguments:
        return False
    return all(isinstance(decision, Save | Recompute) for decision in plan.decisions.values())


def _interpolated_s(small: PlanFigures, large: PlanFigures, limit_bytes: int) -> float:
    """Seconds of the mixture of two plans that takes all of a budget."""
    share = (limit_bytes - small.total_bytes) / (large.total_bytes - small.total_bytes)
    return small.step_s + share * (large.step_s - small.step_s)
