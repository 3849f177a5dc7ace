"""A Flax NNX training step under `nnx.jit`, which updates model and optimiser in place, fitted into a budget."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import jaxckpt

LAYERS, ROWS, WIDTH, BUDGET = 6, 8192, 256, "430MiB"


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.wide = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.narrow = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        return x + self.narrow(nnx.gelu(self.wide(self.norm(x))))


def new_state():
    model = nnx.Sequential(*[Block(nnx.Rngs(number)) for number in range(LAYERS)])
    return model, nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)


@nnx.jit(donate_argnums=(0, 1))
def train_step(model, optimizer, batch):
    loss, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(batch) - 1) ** 2))(model)
    optimizer.update(model, gradients)
    return loss


def train(step):
    model, optimizer = new_state()
    losses = []
    for number in range(3):
        batch = jax.random.normal(jax.random.key(number), (ROWS, WIDTH))
        losses.append(float(step(model, optimizer, batch)))
    return losses


# The lines of jaxckpt. A model of shapes suffices: nnx.eval_shape allocates nothing.
shapes = *nnx.eval_shape(new_state), jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
as_written = jaxckpt.footprint(train_step, *shapes, target="h200")
plan = jaxckpt.plan(train_step, *shapes, budget=BUDGET, target="h200")
print("as written:", as_written.summary())
print("planned:", plan.summary())
print("losses as written:", train(train_step))
print("losses with plan: ", train(plan.apply(train_step)))
