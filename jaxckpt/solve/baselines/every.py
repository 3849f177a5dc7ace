"""The boundary of every k-th stage is kept, and the stages in between are computed again.

What people write by hand: `jax.checkpoint` around each group of k layers, or `checkpoint_sequential` in PyTorch.

Source: Chen et al. 2016, "Training deep nets with sublinear memory cost" (arXiv:1604.06174), section 4.1, with k given.
Read after `chain`.
"""

from jaxckpt.ir import GraphPlan
from jaxckpt.solve.baselines.chain import chain, segments
from jaxckpt.solve.problem import Problem


def solve_every(problem: Problem, k: int = 2) -> GraphPlan:
    """Keeps what crosses into every k-th stage of the chain.

    Args:
      problem: The step; its budget is not looked at.
      k: How many stages run again together, at least 1.
    """
    return segments(problem, chain(problem)[::k], "every")
