"""Full recomputation: only values that cross from stage to stage are saved.

What `jax.checkpoint` without a policy does to each block, with the blocks found by structure. Chen et al. 2016,
algorithm 1, with cuts where little crosses instead of every k-th layer.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

from jaxckpt.cost import Replay
from jaxckpt.ir import GraphPlan
from jaxckpt.solve.problem import Problem, decisions_saving
from jaxckpt.solve.stages import StageStarts, boundaries, candidate_cuts, crossing, members, stage_index


class CutMinima:
    """For each cut of a step the plan that saves its boundaries only: about the least memory that the cut can take.

    While a stage is recomputed, its residuals are live and the boundaries that were written before it. `estimates` has
    every cut with these bytes for its largest stage, by rising bytes, which needs no replay; cuts of low estimates have
    low minima.
    """

    def __init__(self, problem: Problem, *, before_head: bool = False):
        self.problem = problem
        cuts = candidate_cuts(problem, before_head=before_head)
        graph = problem.graph
        written = {op: [v for v in graph.ops[op].writes if v in problem.worth_saving] for op in graph.forward}
        self.estimates = tuple(sorted((_estimated_bytes(problem, stages, written), stages) for stages in cuts))
        self._known: dict[StageStarts, tuple[GraphPlan, Replay]] = {}

    def plan_and_replay(self, stages: StageStarts) -> tuple[GraphPlan, Replay]:
        """The minimum of a cut, with its replay."""
        if stages not in self._known:
            decisions = decisions_saving(self.problem, boundaries(self.problem, stages))
            self._known[stages] = self.problem.plan_and_replay(decisions, stages, "full")
        return self._known[stages]

    def of(self, stages: StageStarts) -> GraphPlan:
        """The minimum of a cut."""
        return self.plan_and_replay(stages)[0]

    @cached_property
    def near_least(self) -> tuple[GraphPlan, ...]:
        """Minima of all cuts that may be nearly as small as the least; the lowest is first."""
        return self.within(self.problem.effort.near_least)

    def within(self, factor: float) -> tuple[GraphPlan, ...]:
        """Minima of all cuts whose estimate is within a factor of the lowest minimum so far; the lowest is first.

        Where estimates are much too high, as for residuals of the branches of a cond, one by one in memory, the limit
        is the same factor of the lowest estimate.
        """
        found: list[GraphPlan] = []
        least_bytes, best_bytes = self.estimates[0][0], math.inf
        for estimated_bytes, stages in self.estimates:
            if estimated_bytes > factor * max(least_bytes, best_bytes):
                break
            found.append(self.of(stages))
            best_bytes = min(best_bytes, found[-1].predicted.temp_bytes)
        return tuple(sorted(found, key=lambda plan: (plan.predicted.temp_bytes, len(plan.stages))))

    @cached_property
    def near_least_unshared(self) -> tuple[GraphPlan, ...]:
        """The minima nearly as small as the least, with what several stages compute alike recomputed in each of them.

        As `jax.checkpoint` around each block of a model whose blocks all compute the same from arguments, say the part
        of the input in an equilibrium: tracing merges these ops.
        """
        found: list[GraphPlan] = []
        for stages in (plan.stages for plan in self.near_least):
            saved = boundaries(self.problem, stages)
            if shared := _shared_values(self.problem, stages, saved):
                decisions = decisions_saving(self.problem, saved - shared)
                found.append(self.problem.plan(decisions, stages, "full"))
        return tuple(found)


def _shared_values(problem: Problem, stages: StageStarts, saved: frozenset[int]) -> frozenset[int]:
    """Boundaries that several later stages read, and that ops make of arguments without another boundary."""
    graph, stage_of = problem.graph, stage_index(problem.graph, stages)
    found = set[int]()
    for value in saved - problem.never_recomputed:
        read_in = {stage_of[op] for op in (graph.producer[value], *graph.readers[value]) if op in stage_of}
        if len(read_in) > 2 and _is_made_without(problem, value, saved):
            found.add(value)
    return frozenset(found)


def _is_made_without(problem: Problem, value: int, saved: frozenset[int]) -> bool:
    """True if a value can be made of arguments alone, outside of loops, and of none of the other saved values."""
    graph, pending, seen = problem.graph, [value], {value}
    while pending:
        made = graph.producer[pending.pop()]
        if made is None:
            continue
        op = graph.ops[made]
        if op.effects or op.loop is not None or not saved.isdisjoint(op.reads):
            return False
        unseen = [v for v in op.reads if v not in seen]
        seen.update(unseen)
        pending.extend(unseen)
    return True


def solve_full(problem: Problem) -> GraphPlan:
    """Saves the boundaries, and nothing else, of the cut with the smallest peak."""
    return _cut_minima(problem).near_least[0]


def _cut_minima(problem: Problem) -> CutMinima:
    """The minima of all cuts, replayed once for all solvers of a problem."""
    known: CutMinima = problem.solver_cache.get("cut minima") or CutMinima(problem)
    problem.solver_cache["cut minima"] = known
    return known


def _estimated_bytes(problem: Problem, stages: StageStarts, written: Mapping[int, Sequence[int]]) -> int:
    """The most bytes of the boundaries before a stage and its residuals, those of a loop's body for one iteration.

    `written` has for each op the values worth saving that it writes.
    """
    graph, saved, needed = problem.graph, boundaries(problem, stages), problem.needed
    held_bytes = most_bytes = 0
    for ops in members(graph, stages):
        own = [v for op in ops for v in written[op]]
        recomputed_bytes = graph.size_bytes(v for v in own if v in needed and v not in saved)
        held_bytes += sum(graph.residual_bytes(v) for v in own if v in saved)
        most_bytes = max(most_bytes, held_bytes + recomputed_bytes)
    return most_bytes


def find_blocks(problem: Problem) -> StageStarts:
    """The blocks of a model: the finest cut nearly as small as the smallest whose boundaries are no larger."""
    found = _cut_minima(problem).near_least
    limit_bytes = problem.effort.near_least * found[0].predicted.temp_bytes
    near = [plan.stages for plan in found if plan.predicted.temp_bytes <= limit_bytes]
    return _begun_early(problem, _finest_as_narrow(problem, found[0].stages, near))


def _begun_early(problem: Problem, stages: StageStarts) -> StageStarts:
    """The same cut with the views and elementwise ops in front of a block in that block, if as few bytes cross there.

    Else they would be results of the block before, which a policy saves.
    """
    graph, crossing_bytes = problem.graph, crossing(problem)
    position = {op: number for number, op in enumerate(graph.forward)}

    def begun_early(start: int) -> int:
        at = position[start]
        while at > 0 and crossing_bytes[at - 1] == crossing_bytes[at]:
            if not problem.fusion.materialised.isdisjoint(graph.ops[graph.forward[at - 1]].writes):
                break
            at -= 1
        return graph.forward[at]

    return (stages[0], *map(begun_early, stages[1:]))


def finest_layers(cut_minima: CutMinima) -> StageStarts:
    """The finest cut whose boundaries are no larger than those of the cut with the lowest estimate, for any estimate.

    Of 33 steps of the benchmarks the cut with the smallest minimum gives other layers for two, whose layers are loops.
    """
    cuts = [stages for _, stages in cut_minima.estimates]
    return _finest_as_narrow(cut_minima.problem, cuts[0], cuts)


def _finest_as_narrow(problem: Problem, like: StageStarts, cuts: Sequence[StageStarts]) -> StageStarts:
    """The finest of some cuts whose boundaries are no larger than those of another one."""
    most_bytes = _most_crossing_bytes(problem, like)
    return max((stages for stages in cuts if _most_crossing_bytes(problem, stages) <= most_bytes), key=len)


def _most_crossing_bytes(problem: Problem, stages: StageStarts) -> int:
    return max(map(problem.graph.residual_bytes, boundaries(problem, stages)), default=0)
