"""A Flax Linen training step with a TrainState, fitted into a budget."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

import jaxckpt

LAYERS, ROWS, WIDTH, BUDGET = 6, 8192, 256, "430MiB"


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        hidden = nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x)))
        return x + nn.Dense(WIDTH)(hidden)


def new_state():
    model = nn.Sequential([Block() for _ in range(LAYERS)])
    params = model.init(jax.random.key(0), jnp.ones((1, WIDTH)))
    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(1e-3))


@jax.jit(donate_argnums=0)
def train_step(state, batch):
    def loss_of(params):
        return jnp.mean((state.apply_fn(params, batch) - 1) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=gradients), loss


def train(step):
    state, losses = new_state(), []
    for number in range(3):
        batch = jax.random.normal(jax.random.key(number), (ROWS, WIDTH))
        state, loss = step(state, batch)
        losses.append(float(loss))
    return losses


# The lines of jaxckpt. Shapes suffice, so nothing is allocated while planning.
shapes = jax.eval_shape(new_state), jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
as_written = jaxckpt.footprint(train_step, *shapes, target="h200")
plan = jaxckpt.plan(train_step, *shapes, budget=BUDGET, target="h200")
print("as written:", as_written.summary())
print("planned:", plan.summary())
print("losses as written:", train(train_step))
print("losses with plan: ", train(plan.apply(train_step)))
