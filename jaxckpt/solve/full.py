"""Everything is recomputed but what crosses from stage to stage.

What `jax.checkpoint` without a policy does to each block, with the blocks found by structure. Chen et al. 2016,
algorithm 1, with cuts where little crosses instead of every k-th layer.
"""

import math
from collections.abc import Iterator

from jaxckpt.ir import Plan
from jaxckpt.solve.problem import Problem, decide
from jaxckpt.solve.stages import boundaries, stagings


def solve_full(problem: Problem) -> Plan:
    """Saves boundaries alone, of the cut with the smallest peak."""
    plans = smallest_cuts(problem, 1.0)
    return min(plans, key=lambda plan: (_temp_bytes(plan), len(plan.stages)))


def smallest_cuts(problem: Problem, within: float) -> Iterator[Plan]:
    """The plan of each cut, but for cuts whose boundaries alone are larger than `within` times the best peak so far."""
    best_bytes = math.inf
    for stages in stagings(problem):
        saved = boundaries(problem, stages)
        if sum(problem.graph.values[v].size_bytes for v in saved) > within * best_bytes:
            continue
        plan = decide(problem, saved, stages, "full")
        best_bytes = min(best_bytes, _temp_bytes(plan))
        yield plan


def _temp_bytes(plan: Plan) -> int:
    assert plan.prediction is not None
    return plan.prediction.temp_bytes
