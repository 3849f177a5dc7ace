"""The logits of a loss head, computed as a matrix: their gradient is written over them, unless a barrier holds them."""

import jax
import jax.numpy as jnp
import pytest

from jaxckpt import Planner
from jaxckpt.machine import targets
from jaxckpt.solve import solve
from jaxckpt.solve.problem import decide

pytestmark = pytest.mark.skipif(
    not any(status.name == "h200" and status.usable for status in targets()),
    reason="needs the CUDA plugin: pip install 'jaxckpt[gpu-targets]'",
)
BATCH, TOKENS, WIDTH, VOCABULARY = 8, 256, 128, 40_000
LOGITS_BYTES = 2 * BATCH * TOKENS * VOCABULARY


def step(weights, x, labels):
    def loss(weights):
        hidden = jnp.tanh(x @ weights["in"])
        logits = hidden @ weights["out"].T
        likelihoods = jax.nn.log_softmax(logits.astype(jnp.float32))
        return -jnp.take_along_axis(likelihoods, labels[..., None], axis=-1).mean()

    return jax.grad(loss)(weights)


def planner():
    bf16 = jnp.bfloat16
    weights = {
        "in": jax.ShapeDtypeStruct((WIDTH, WIDTH), bf16),
        "out": jax.ShapeDtypeStruct((VOCABULARY, WIDTH), bf16),
    }
    x, labels = (
        jax.ShapeDtypeStruct((BATCH, TOKENS, WIDTH), bf16),
        jax.ShapeDtypeStruct((BATCH, TOKENS), jnp.int32),
    )
    return Planner(step, weights, x, labels, target="h200")


@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_gradient_is_written_over_flat_logits_where_no_barrier_holds_them(is_pinned):
    """Where the softmax is recomputed, the logits pass a barrier, and their gradient has memory of its own."""
    made = planner()
    problem = made.problem
    logits = max(problem.graph.forward, key=lambda op: problem.graph.ops[op].flops or 0)
    (value,) = problem.graph.ops[logits].writes
    plan = decide(problem, frozenset({value}), (0,), "saves logits") if is_pinned else solve(problem, "none")
    compiled_bytes = made.measure(plan).footprint.temp_bytes
    assert round(compiled_bytes / LOGITS_BYTES) == (4 if is_pinned else 3)
    assert plan.predicted.temp_bytes == pytest.approx(compiled_bytes, rel=0.01)
