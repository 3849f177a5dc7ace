"""Full recomputation, and what stages share with each other."""

from functools import partial

import jax
import jax.numpy as jnp

from jaxckpt.ir import Phase, Recompute
from jaxckpt.solve import Problem
from jaxckpt.solve.full_recompute import CutMinima
from jaxckpt.trace import trace_step
from tests.graphs import RATES, Builder

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


def shrinking_blocks() -> Problem:
    """Blocks that shrink: boundaries of later blocks are not there yet while an early one is recomputed."""
    build = Builder()
    value, written = build.input(4 * 2**20), []
    for block in range(8):
        for factor in (4, 1):
            value = build.op("dot_general", value, size_bytes=4 * int(factor * 2**20 * 0.6**block), flops=1e6)
            written.append(value)
    gradient = partial(build.op, "dot_general", phase=Phase.BACKWARD, flops=1e6)
    cotangent = gradient(value, size_bytes=build.values[value].size_bytes)
    for residual in reversed(written[:-1]):
        cotangent = gradient(residual, cotangent, size_bytes=build.values[residual].size_bytes)
    return Problem(graph=build.graph(cotangent), rates=RATES)


def test_of_all_cuts_the_one_of_least_memory_is_found():
    minima = CutMinima(shrinking_blocks())
    least_bytes = min(minima.of(stages).predicted.temp_bytes for _, stages in minima.estimates)
    assert minima.near_least[0].predicted.temp_bytes == least_bytes


def test_cuts_of_nearly_the_lowest_estimate_are_tried_where_all_are_too_high():
    """As for the residuals of the branches of a cond, one by one in memory."""
    minima = CutMinima(shrinking_blocks())
    least, second = sorted(
        (minima.of(stages) for _, stages in minima.estimates), key=lambda plan: plan.predicted.temp_bytes
    )[:2]
    estimate_bytes = 10 * second.predicted.temp_bytes
    minima.estimates = (estimate_bytes, second.stages), (int(1.05 * estimate_bytes), least.stages)
    assert minima.near_least == (least, second)
