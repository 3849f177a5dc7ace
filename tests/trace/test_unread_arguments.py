"""Arguments that nothing reads: jit drops them, and neither a footprint nor a prediction counts them."""

import jax
import jax.numpy as jnp
import pytest

import jaxckpt
from jaxckpt import Planner
from tests.cost.test_epilogues import needs_gpu_target, spec


def step(weights, x, unread, returned):
    return weights - jax.grad(lambda weights: jnp.sum(jnp.tanh(x @ weights) ** 2))(weights), returned


ARGS = spec(64, 64), spec(4096, 64), spec(2**20), spec(16)
READ_BYTES = 4 * (64 * 64 + 4096 * 64)


@pytest.mark.parametrize("target", ["cpu", pytest.param("h200", marks=needs_gpu_target)])
def test_they_take_no_bytes(target):
    planner = Planner(step, *ARGS, target=target)
    assert planner.graph.argument_bytes - 4 * 16 == READ_BYTES
    footprint = jaxckpt.footprint(step, *ARGS, target=target)
    assert READ_BYTES <= footprint.argument_bytes <= planner.graph.argument_bytes


@needs_gpu_target
def test_they_do_not_make_a_budget_too_small():
    """The argument alone is larger than the budget."""
    plan = jaxckpt.plan(step, *ARGS, target="h200", budget="3.5MiB")
    assert plan.footprint.total_bytes < 3.5 * 2**20
