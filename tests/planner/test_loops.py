"""Scanned steps compiled for a machine that is not there: a plan takes what a checkpoint in the body takes."""

import jax
import jax.numpy as jnp
import pytest

import jaxckpt
from jaxckpt.solve import solve

pytestmark = pytest.mark.usefixtures("no_local_search")

LENGTH, ROWS, WIDTH = 16, 2048, 512
ARGS = (
    jax.ShapeDtypeStruct((LENGTH, WIDTH, WIDTH), jnp.float32),
    jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32),
)


def layer(x, w):
    return x + jnp.sin(jnp.tanh(x @ w) ** 2), None


def step_with(body):
    def loss(w, x):
        return (jax.lax.scan(body, x, w)[0] ** 2).mean()

    return jax.grad(loss)


@pytest.fixture(scope="module")
def planner():
    return jaxckpt.Planner(step_with(layer), *ARGS, target="h200")


def test_full_recomputation_takes_as_much_as_a_checkpointed_body(planner):
    plan = solve(planner.problem, "full")
    ours = planner.measure(plan).footprint
    theirs = jaxckpt.footprint(step_with(jax.checkpoint(layer, prevent_cse=False)), *ARGS, target="h200")
    assert ours.temp_bytes <= 1.01 * theirs.temp_bytes
    assert plan.predicted.temp_bytes == pytest.approx(ours.temp_bytes, rel=0.1)


def test_the_step_as_it_is_is_predicted(planner):
    plan = solve(planner.problem, "none")
    assert plan.predicted.temp_bytes == pytest.approx(planner.measure(plan).footprint.temp_bytes, rel=0.05)


def test_a_scanned_step_is_planned_within_a_budget(planner):
    none, full = (planner.measure(solve(planner.problem, name)).footprint.total_bytes for name in ("none", "full"))
    plan = planner.plan(budget=(none + full) // 2)
    assert plan.footprint.total_bytes <= (none + full) // 2


@jax.grad
def of_wide_layers(weights, x):
    for up, down in weights:
        x = x + jax.nn.gelu(x @ up) @ down
    return (x**2).mean()


def accumulated(weights, batches):
    """The gradient of wide layers, summed over batches."""

    def turn(sums, x):
        return jax.tree.map(jnp.add, sums, of_wide_layers(weights, x)), None

    return jax.lax.scan(turn, jax.tree.map(jnp.zeros_like, weights), batches)[0]


def accumulated_by_counter(weights, batches):
    """The same, each turn taking its batch by a counter."""

    def turn(i, sums):
        return jax.tree.map(jnp.add, sums, of_wide_layers(weights, batches[i]))

    return jax.lax.fori_loop(0, batches.shape[0], turn, jax.tree.map(jnp.zeros_like, weights))


@pytest.mark.parametrize("step", [accumulated, accumulated_by_counter])
def test_accumulated_gradients_of_weights_are_updated_in_place(step):
    """XLA puts them off to the end of a body in which it copies slices beside the kernels."""
    weights = [tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in ((512, 2048), (2048, 512)))] * 6
    planner = jaxckpt.Planner(step, weights, jax.ShapeDtypeStruct((4, 8192, 512), jnp.float32), target="h200")
    plan = solve(planner.problem, "full")
    assert planner.measure(plan).footprint.temp_bytes == pytest.approx(plan.predicted.temp_bytes, rel=0.1)
