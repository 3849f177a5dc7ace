"""Everything is recomputed but what crosses from stage to stage.

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
"""A cut whose peak is within this of the smallest one is nearly as small."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CutMinimum:
    """The least that a cut takes: its boundaries are kept, nothing else.

    Attributes:
      plan: That plan.
      replay: What it takes, step by step.
    """

    plan: GraphPlan
    replay: Replay

    @property
    def temp_bytes(self) -> int:
        """The largest number of bytes alive at once."""
        return self.replay.peak_bytes


class CutMinima:
    """The floors of a step's cuts, each replayed when it is asked for.

    A cut takes at least its boundaries and what one stage leaves for the backward, which is computed again at once.
    That bound needs no replay; cuts of a low bound have low floors, and leave most room to keep something.

    Args:
      problem: The step.
      before_head: Whether cuts have one more before the head, as for `candidate_cuts`.

    Attributes:
      bounds: Every cut with its bound in bytes, by rising bound.
    """

    def __init__(self, problem: Problem, *, before_head: bool = False):
        self.problem = problem
        before = [0, *accumulate(needed_bytes(problem, of_a_turn=True))]
        cuts = candidate_cuts(problem, before_head=before_head)
        self.bounds = tuple(sorted((_least_bytes(problem, stages, before), stages) for stages in cuts))
        self._known: dict[StageStarts, CutMinimum] = {}

    def of(self, stages: StageStarts) -> CutMinimum:
        """The floor of a cut."""
        if stages not in self._known:
            decisions = decisions_saving(self.problem, boundaries(self.problem, stages))
            plan, replay = self.problem.plan_and_replay(decisions, stages, "full")
            self._known[stages] = CutMinimum(plan=plan, replay=replay)
        return self._known[stages]

    def within(self, factor: float) -> tuple[CutMinimum, ...]:
        """The floors of all cuts but of those that cannot come within a factor of the lowest; the lowest is first."""
        found: list[CutMinimum] = []
        best_bytes = math.inf
        for least_bytes, stages in self.bounds:
            if least_bytes > factor * best_bytes:
                break
            found.append(self.of(stages))
            best_bytes = min(best_bytes, found[-1].temp_bytes)
        return tuple(sorted(found, key=lambda minimum: (minimum.temp_bytes, len(minimum.plan.stages))))


def solve_full(problem: Problem) -> GraphPlan:
    """Saves boundaries alone, of the cut with the smallest peak."""
    return CutMinima(problem).within(_NEARLY_SMALLEST)[0].plan


def _least_bytes(problem: Problem, stages: StageStarts, before: Sequence[int]) -> int:
    """What crosses, and the most that a stage leaves for the backward; `before` has what is left before each op."""
    graph = problem.graph
    begins = [0, *(bisect_left(graph.forward, start) for start in stages[1:]), len(graph.forward)]
    most_bytes = max(before[end] - before[begin] for begin, end in pairwise(begins))
    return most_bytes + sum(map(graph.residual_bytes, boundaries(problem, stages)))


def find_blocks(problem: Problem) -> StageStarts:
    """The blocks of a model: the finest cut nearly as small as the smallest, across which nothing larger goes."""
    found = CutMinima(problem).within(_NEARLY_SMALLEST)
    most_bytes = _most_crossing_bytes(problem, found[0].plan.stages)
    near = [f.plan.stages for f in found if f.temp_bytes <= _NEARLY_SMALLEST * found[0].temp_bytes]
    return max((s for s in near if _most_crossing_bytes(problem, s) <= most_bytes), key=len)


def finest_layers(cut_minima: CutMinima) -> StageStarts:
    """The finest cut across which nothing larger goes than across the one of the smallest peak, whatever its own peak.

    Args:
      cut_minima: Of the step.
    """
    problem = cut_minima.problem
    most_bytes = _most_crossing_bytes(problem, cut_minima.within(1.0)[0].plan.stages)
    return max((s for _, s in cut_minima.bounds if _most_crossing_bytes(problem, s) <= most_bytes), key=len)


def _most_crossing_bytes(problem: Problem, stages: StageStarts) -> int:
    return max(map(problem.graph.residual_bytes, boundaries(problem, stages)), default=0)
