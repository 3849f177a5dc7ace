"""Layers of two kinds, each a cond, compiled for an H200 that is not there."""

import jax
import jax.numpy as jnp
import pytest

from jaxckpt.compiler import footprint
from jaxckpt.planner import Planner
from jaxckpt.policy import Policy
from tests.planner.test_planner import needs_compiler

pytestmark = pytest.mark.usefixtures("no_local_search")

WIDTH, ROWS, LAYERS = 2048, 4096, 3


def wide(w, x):
    return x + jax.nn.gelu(x @ w["up"].astype(x.dtype)) @ w["down"].astype(x.dtype)


def deep(w, x):
    square = w["square"].astype(x.dtype)
    hidden = jnp.tanh(x @ square)
    return x + (jax.nn.silu(hidden @ square) * hidden) @ square


def weights(*lead):
    shapes = {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH), "square": (WIDTH, WIDTH)}
    return {name: jax.ShapeDtypeStruct((*lead, *shape), jnp.float32) for name, shape in shapes.items()}


def one_by_one(remat):
    def loss(layers, x, kinds):
        for i, w in enumerate(layers):
            x = jax.lax.cond(kinds[i] > 0, remat(wide), remat(deep), w, x)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    return jax.value_and_grad(loss), [weights() for _ in range(LAYERS)]


def scanned(remat):
    def loss(layers, x, kinds):
        def body(x, layer):
            w, kind = layer
            return jax.lax.cond(kind > 0, remat(wide), remat(deep), w, x), None

        return jnp.mean(jax.lax.scan(body, x, (layers, kinds))[0].astype(jnp.float32) ** 2)

    return jax.value_and_grad(loss), weights(LAYERS)


def made(make, remat):
    step, layers = make(remat)
    return step, (layers, jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.bfloat16), jax.ShapeDtypeStruct((LAYERS,), jnp.int32))


@pytest.fixture(scope="module", params=[one_by_one, scanned])
def make(request):
    return request.param


@pytest.fixture(scope="module")
def planner(make):
    step, args = made(make, lambda layer: layer)
    return Planner(step, *args, target="h200")


@pytest.fixture(scope="module")
def by_hand(make):
    step, args = made(make, jax.checkpoint)
    return footprint(step, *args, target="h200")


@needs_compiler
def test_recomputed_branches_take_at_most_checkpoints_by_hand(planner, by_hand):
    ours = planner.measure(planner.follow(Policy(default="recompute")))
    assert ours.footprint.temp_bytes <= by_hand.temp_bytes
    assert ours.footprint.step_s <= 1.01 * by_hand.step_s
    assert ours.plan.predicted.total_bytes == pytest.approx(ours.footprint.total_bytes, rel=0.08)
    assert ours.plan.predicted.step_s == pytest.approx(ours.footprint.step_s, rel=0.1)


@needs_compiler
def test_branches_that_save_some_values_are_as_fast_as_by_hand(planner, by_hand):
    budget = (planner.unplanned.total_bytes + by_hand.total_bytes) // 2
    plan = planner.plan(budget=budget)
    assert plan.footprint.total_bytes <= budget
    assert plan.footprint.step_s < 1.005 * by_hand.step_s
    assert plan.predicted.total_bytes == pytest.approx(plan.footprint.total_bytes, rel=0.05)
    assert plan.predicted.step_s == pytest.approx(plan.footprint.step_s, rel=0.1)
