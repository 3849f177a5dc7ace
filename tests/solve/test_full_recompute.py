"""Full recomputation, and what stages share with each other."""

import jax
import jax.numpy as jnp

from jaxckpt.ir import Recompute
from jaxckpt.solve import Problem
from jaxckpt.solve.full_recompute import CutMinima
from jaxckpt.trace import trace_step
from tests.graphs import RATES

WIDTH, ROWS, BLOCKS = 64, 4096, 6


def problem(*, reads_input: bool) -> Problem:
    """Blocks that all read one product of the input, or of the state of the block before."""

    def loss(weights, x):
        state = x
        for weight in weights["state"]:
            given = (x if reads_input else state) @ weights["given"]
            state = state + jnp.sin(jnp.sin(state) @ weight + given)
        return (state**2).sum()

    weight = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    weights = {"state": [weight] * BLOCKS, "given": weight}
    traced = trace_step(jax.grad(loss), weights, jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32))
    return Problem(graph=traced.graph, rates=RATES)


def test_each_stage_may_compute_by_itself_what_all_blocks_compute_alike():
    """Tracing merges the six products of the input; a plan may keep the merged one, or compute it in each stage."""
    cuts = CutMinima(problem(reads_input=True))
    shared = next(op.writes[0] for op in cuts.problem.graph.ops if op.primitive == "dot_general")
    kept, unshared = cuts.near_least[0], cuts.near_least_unshared[0]
    assert shared in kept.decisions and not isinstance(kept.decisions[shared], Recompute)
    assert isinstance(unshared.decisions.get(shared, Recompute()), Recompute)
    assert unshared.predicted.temp_bytes < kept.predicted.temp_bytes
    assert unshared.predicted.recomputed_ops >= kept.predicted.recomputed_ops + len(unshared.stages) - 1


def test_no_other_minima_where_blocks_share_nothing():
    assert CutMinima(problem(reads_input=False)).near_least_unshared == ()
