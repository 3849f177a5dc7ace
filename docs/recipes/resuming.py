"""A job that is stopped and resumed: its state from a checkpoint, its plan from the file that is committed."""

import pickle
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

import jaxckpt

LAYERS, ROWS, WIDTH, BUDGET = 6, 8192, 256, "200MiB"
PLAN, CHECKPOINT = Path("plan.toml"), Path("state.pickle")
optimizer = optax.adamw(1e-3)


def new_state():
    params = [0.06 * jax.random.normal(key, (WIDTH, WIDTH)) for key in jax.random.split(jax.random.key(0), LAYERS)]
    return params, optimizer.init(params)


@jax.jit(donate_argnums=0)
def train_step(state, batch):
    params, opt_state = state

    def loss_of(params):
        x = batch
        for weights in params:
            x += jnp.sin(x @ weights) * jnp.cos(x)
        return jnp.mean((x - 1) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(params)
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), loss


def job(steps, *, planned=True):
    """Trains to the given step, from the checkpoint if there is one."""
    done, state = pickle.loads(CHECKPOINT.read_bytes()) if CHECKPOINT.exists() else (0, new_state())
    step, losses = train_step, []
    if (
        planned
    ):  # The lines of jaxckpt: reads the file, and makes and writes a plan if there is none, or none that fits.
        shapes = jax.eval_shape(lambda: state), jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
        plan = jaxckpt.load_or_plan(PLAN, train_step, *shapes, budget=BUDGET, target="h200")
        step = plan.apply(train_step)
        print("planned:", plan.summary())
    for number in range(done, steps):
        state, loss = step(state, jax.random.normal(jax.random.key(number), (ROWS, WIDTH)))
        losses.append(float(loss))
    CHECKPOINT.write_bytes(pickle.dumps((steps, jax.device_get(state))))
    return losses


print("steps 0 to 2:", job(3))  # the first job makes the plan
print("steps 3 to 5:", resumed := job(6))  # the second one reads it: nothing is solved or compiled for planning
CHECKPOINT.unlink()
print("without plan:", job(6, planned=False))
