"""MindSpore's ten attention blocks: computed again, each, they take at most what they take there, by ratio.

The guide to `Cell.recompute` says 167 MB and 69 MB of memory that is not parameters, on its own hardware.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxckpt
from jaxckpt.ir import Save
from jaxckpt.policy import load_policy
from jaxckpt.solve.policy_plan import plan_from_policy

BLOCKS = 10
SEED = 167 / 69
X = jax.ShapeDtypeStruct((8, 128, 16, 32), jnp.float32)
MASK = jax.ShapeDtypeStruct((8, 128, 128), jnp.float32)
KEY = jax.eval_shape(lambda: jax.random.key(0))
ARGUMENTS = (X, [MASK] * BLOCKS, KEY)


def block(y, x, key):
    heads_first = jnp.transpose(x, (0, 2, 1, 3))
    transposed = jnp.transpose(x, (0, 2, 3, 1)) / 2.37891
    scores = heads_first / 2.37891 @ transposed + (1 - jnp.expand_dims(y, 1)) * -1e-4
    weights = jax.nn.softmax(scores, axis=-1)
    kept = jax.random.bernoulli(key, 0.9, weights.shape)
    mixed = jnp.where(kept, weights / 0.9, 0) @ heads_first
    return jnp.transpose(mixed, (0, 2, 1, 3))


def gradient(block):
    def network(x, ys, key):
        for i, y in enumerate(ys):
            with jax.named_scope(f"block_{i}"):
                x = block(y, x, jax.random.fold_in(key, i))
        return x.sum()

    return jax.grad(network)


@pytest.fixture(scope="module")
def planner():
    return jaxckpt.Planner(gradient(block), *ARGUMENTS, target="h200")


@pytest.fixture(scope="module")
def as_it_is(planner):
    return planner.unplanned


@pytest.fixture(scope="module")
def by_jax_checkpoint():
    """The network with `jax.checkpoint` around each block, compiled."""
    return jaxckpt.footprint(gradient(jax.checkpoint(block)), *ARGUMENTS, target="h200")


def test_every_inner_block_holds_the_same_bytes(as_it_is):
    memory = as_it_is.memory
    held = {scope.scope: scope.held_bytes for scope in memory.scopes(depth=1) if scope.scope}
    assert not memory.problems
    inner = [held[f"block_{i}"] for i in range(1, BLOCKS - 1)]
    assert max(inner) <= 1.01 * min(inner)
    assert sum(held.values()) >= 0.9 * as_it_is.temp_bytes


def test_jax_checkpoint_of_each_block_saves_as_much_as_the_seed(as_it_is, by_jax_checkpoint):
    assert as_it_is.temp_bytes / by_jax_checkpoint.temp_bytes >= SEED


def test_mindspores_cells_take_no_more_than_jax_checkpoint_of_each_block(planner, by_jax_checkpoint):
    """Random bits of different cells are not drawn by one kernel at the start of the backward."""
    by_policy = planner.follow(load_policy("mindspore_cell")).footprint
    assert by_policy.memory.peak_bytes <= by_jax_checkpoint.memory.peak_bytes
    assert by_policy.temp_bytes <= 1.05 * by_jax_checkpoint.temp_bytes  # with holes of a few values between buffers


def test_a_plan_of_the_unmarked_network_saves_as_much(planner, as_it_is):
    plan = planner.plan(budget=as_it_is.total_bytes, strategy="full")
    assert len(plan.stages) == BLOCKS
    assert as_it_is.temp_bytes / plan.footprint.temp_bytes >= SEED


def test_a_block_begins_with_the_elementwise_ops_on_its_input():
    """Blocks with keys of their own: their inputs are saved, one value each, not the two that are computed of each."""

    def network(x, ys, keys):
        for y, key in zip(ys, keys, strict=True):
            x = block(y, x, key)
        return x.sum()

    planned = jaxckpt.Planner(jax.grad(network), X, [MASK] * 4, [KEY] * 4, target="h200")
    plan = plan_from_policy(planned.problem, load_policy("mindspore_cell")).plan
    saved = [value for value, decision in plan.decisions.items() if isinstance(decision, Save)]
    assert len(saved) == 3
    assert {planned.graph.ops[planned.graph.producer[value]].primitive for value in saved} == {"dot_general"}


def test_the_mask_is_a_shift_of_the_scores():
    """What the seed adds is (1 - y) * -1e-4: a mask of ones changes nothing, one of zeros the same for all."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 8, 2, 4)), jnp.float32)
    ones, zeros = jnp.ones((2, 8, 8)), jnp.zeros((2, 8, 8))
    key = jax.random.key(0)
    np.testing.assert_allclose(block(ones, x, key), block(zeros, x, key), rtol=1e-5, atol=1e-6)
