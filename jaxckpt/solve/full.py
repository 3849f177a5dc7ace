"""Everything is recomputed but what crosses from stage to stage.

What `jax.checkpoint` without a policy does to each block, with the blocks found by structure. Chen et al. 2016,
algorithm 1, with cuts where little crosses instead of every k-th layer.
"""

import math
from collections.abc import Iterator

from jaxckpt.ir import Plan
from jaxckpt.solve.problem import Problem, decide
from jaxckpt.solve.stages import Stages, boundaries, stagings

_NEARLY_SMALLEST = 1.1
"""A cut whose peak is within this of the smallest one is nearly as small."""


def solve_full(problem: Problem) -> Plan:
    """Saves boundaries alone, of the cut with the smallest peak."""
    plans = smallest_cuts(problem, 1.0)
    return min(plans, key=lambda plan: (plan.predicted.temp_bytes, len(plan.stages)))


def smallest_cuts(problem: Problem, within: float) -> Iterator[Plan]:
    """The plan of each cut, but for cuts whose boundaries alone are larger than `within` times the best peak so far."""
    best_bytes = math.inf
    for stages in stagings(problem):
        saved = boundaries(problem, stages)
        if sum(problem.graph.values[v].size_bytes for v in saved) > within * best_bytes:
            continue
        plan = decide(problem, saved, stages, "full")
        best_bytes = min(best_bytes, plan.predicted.temp_bytes)
        yield plan


def find_blocks(problem: Problem) -> Stages:
    """The blocks of a model: the finest cut nearly as small as the smallest, across which nothing larger goes."""
    plans = sorted(
        smallest_cuts(problem, _NEARLY_SMALLEST), key=lambda plan: (plan.predicted.temp_bytes, len(plan.stages))
    )
    most_bytes = _most_crossing_bytes(problem, plans[0].stages)
    near = [
        plan.stages for plan in plans if plan.predicted.temp_bytes <= _NEARLY_SMALLEST * plans[0].predicted.temp_bytes
    ]
    return max((s for s in near if _most_crossing_bytes(problem, s) <= most_bytes), key=len)


def _most_crossing_bytes(problem: Problem, stages: Stages) -> int:
    return max((problem.graph.values[v].size_bytes for v in boundaries(problem, stages)), default=0)
