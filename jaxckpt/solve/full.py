"""Everything is recomputed but what crosses from stage to stage.

What `jax.checkpoint` without a policy does to each block, with the blocks found by structure. Chen et al. 2016,
algorithm 1, with cuts where little crosses instead of every k-th layer.
"""

from jaxckpt.ir import Plan
from jaxckpt.solve.problem import Problem, decide
from jaxckpt.solve.stages import Stages, boundaries, stagings


def solve_full(problem: Problem, stages: Stages | None = None) -> Plan:
    """Saves boundaries alone; without given stages, those of the smallest peak."""
    if stages is not None:
        return decide(problem, boundaries(problem, stages), stages, "full")
    plans = (solve_full(problem, cut) for cut in stagings(problem))
    return min(plans, key=lambda plan: (plan.prediction.temp_bytes, len(plan.stages)))  # type: ignore[union-attr]
