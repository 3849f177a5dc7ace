"""Full recomputation: only values that cross from stage to stage are saved.

What `jax.checkpoint` without a policy does to each block, with the blocks found by structure. Chen et al. 2016,
algorithm 1, with cuts where little crosses instead of every k-th layer.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from jaxckpt.cost import Replay
from jaxckpt.ir import GraphPlan
from jaxckpt.solve.problem import Problem, decisions_saving
from jaxckpt.solve.stages import StageStarts, boundaries, candidate_cuts, needed_bytes

_NEARLY_SMALLEST = 1.1
"""A cut whose peak is within this factor of the smallest is nearly as small. No benchmark fixed the exact value."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CutMinimum:
    """The plan of a cut that saves its boundaries only: about the least memory that the cut can take.

    Attributes:
      plan: The plan.
      replay: Its memory and time, step by step.
    """

    plan: GraphPlan
    replay: Replay

    @property
    def temp_bytes(self) -> int:
        """Peak of live bytes."""
        return self.replay.peak_bytes


class CutMinima:
    """The minima of a step's cuts, each replayed on first use.

    A cut takes at least its boundaries and the residuals of one stage, which are recomputed together. That lower bound
    needs no replay; cuts of low bounds have low minima, and leave most memory for saving values.

    Args:
      problem: The step.
      before_head: True to cut before the head too, as for `candidate_cuts`.

    Attributes:
      bounds: Every cut with its bound in bytes, by rising bound.
    """

    def __init__(self, problem: Problem, *, before_head: bool = False):
        self.problem = problem
        before = [0, *accumulate(needed_bytes(problem, per_iteration=True))]
        cuts = candidate_cuts(problem, before_head=before_head)
        self.bounds = tuple(sorted((_least_bytes(problem, stages, before), stages) for stages in cuts))
        self._known: dict[StageStarts, CutMinimum] = {}

    def of(self, stages: StageStarts) -> CutMinimum:
        """The minimum of a cut."""
        if stages not in self._known:
            decisions = decisions_saving(self.problem, boundaries(self.problem, stages))
            plan, replay = self.problem.plan_and_replay(decisions, stages, "full")
            self._known[stages] = CutMinimum(plan=plan, replay=replay)
        return self._known[stages]

    def within(self, factor: float) -> tuple[CutMinimum, ...]:
        """Minima of all cuts whose bound is within a factor of the lowest minimum so far; the lowest is first."""
        found: list[CutMinimum] = []
        best_bytes = math.inf
        for least_bytes, stages in self.bounds:
            if least_bytes > factor * best_bytes:
                break
            found.append(self.of(stages))
            best_bytes = min(best_bytes, found[-1].temp_bytes)
        return tuple(sorted(found, key=lambda minimum: (minimum.temp_bytes, len(minimum.plan.stages))))


def solve_full(problem: Problem) -> GraphPlan:
    """Saves the boundaries, and nothing else, of the cut with the smallest peak."""
    return CutMinima(problem).within(_NEARLY_SMALLEST)[0].plan


def _least_bytes(problem: Problem, stages: StageStarts, before: Sequence[int]) -> int:
    """Bytes of boundaries and of the residuals of the largest stage; `before` has residual bytes before each op."""
    graph = problem.graph
    begins = [0, *(bisect_left(graph.forward, start) for start in stages[1:]), len(graph.forward)]
    most_bytes = max(before[end] - before[begin] for begin, end in pairwise(begins))
    return most_bytes + sum(map(graph.residual_bytes, boundaries(problem, stages)))


def find_blocks(problem: Problem) -> StageStarts:
    """The blocks of a model: the finest cut nearly as small as the smallest whose boundaries are no larger."""
    found = CutMinima(problem).within(_NEARLY_SMALLEST)
    most_bytes = _most_crossing_bytes(problem, found[0].plan.stages)
    near = [f.plan.stages for f in found if f.temp_bytes <= _NEARLY_SMALLEST * found[0].temp_bytes]
    return max((s for s in near if _most_crossing_bytes(problem, s) <= most_bytes), key=len)


def finest_layers(cut_minima: CutMinima) -> StageStarts:
    """The finest cut whose boundaries are no larger than those of the cut with the smallest peak, for any peak.

    Args:
      cut_minima: Of the step.
    """
    problem = cut_minima.problem
    most_bytes = _most_crossing_bytes(problem, cut_minima.within(1.0)[0].plan.stages)
    return max((s for _, s in cut_minima.bounds if _most_crossing_bytes(problem, s) <= most_bytes), key=len)


def _most_crossing_bytes(problem: Problem, stages: StageStarts) -> int:
    return max(map(problem.graph.residual_bytes, boundaries(problem, stages)), default=0)
