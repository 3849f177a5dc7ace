"""Tests for continuous integration: a step's memory is watched, and its committed plan still fits.

`python plan_in_ci.py` makes plan.toml once; `pytest plan_in_ci.py` runs the tests. Both need no GPU.
"""

from pathlib import Path

import jax
import jax.numpy as jnp

import jaxckpt
from jaxckpt.testing import assert_fits

LAYERS, ROWS, WIDTH, BUDGET = 6, 8192, 1024, "260MiB"
PLAN = Path(__file__).with_name("plan.toml")


@jax.jit(donate_argnums=0)
def train_step(params, batch):
    def loss_of(params):
        x = batch
        for weights in params:
            x = jnp.tanh(x @ weights)
        return jnp.mean((x - 1) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss


def make_step():
    """Also for the shell: `jaxckpt plan plan_in_ci.py:make_step --check plan.toml`."""
    params = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS
    return train_step, (params, jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32))


def test_memory_as_written(jaxckpt_snapshot):
    step, args = make_step()
    jaxckpt_snapshot(step, *args, target="h200")  # fails if a change takes over 1% and 1 MiB more than before


def test_committed_plan_fits():
    step, args = make_step()
    plan = jaxckpt.load_plan(PLAN)
    assert_fits(plan.apply(step), *args, budget=BUDGET, target=plan.target, donate_argnums=0)  # compiles, runs nothing


if __name__ == "__main__":
    step, args = make_step()
    plan = jaxckpt.plan(step, *args, budget=BUDGET, target="h200")
    plan.save(PLAN)
    print("planned:", plan.summary())
