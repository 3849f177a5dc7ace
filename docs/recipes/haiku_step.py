"""A Haiku training step with dropout and a random key, fitted into a budget."""

import haiku as hk
import jax
import jax.numpy as jnp
import optax

import jaxckpt

LAYERS, ROWS, WIDTH, BUDGET = 6, 8192, 256, "430MiB"
optimizer = optax.adamw(1e-3)


class Block(hk.Module):
    def __call__(self, x):
        hidden = jax.nn.gelu(hk.Linear(4 * WIDTH, name="wide")(hk.LayerNorm(-1, True, True)(x)))
        return x + hk.dropout(hk.next_rng_key(), 0.1, hk.Linear(WIDTH, name="narrow")(hidden))


def forward(x):
    for layer in range(LAYERS):
        x = Block(name=f"block_{layer}")(x)
    return x


model = hk.transform(forward)


def new_state():
    params = model.init(jax.random.key(0), jnp.ones((1, WIDTH)))
    return params, optimizer.init(params)


@jax.jit(donate_argnums=0)
def train_step(state, key, batch):
    params, opt_state = state
    loss, gradients = jax.value_and_grad(lambda p: jnp.mean((model.apply(p, key, batch) - 1) ** 2))(params)
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), loss


def train(step):
    state, losses = new_state(), []
    for key in jax.random.split(jax.random.key(1), 3):
        batch = jax.random.normal(key, (ROWS, WIDTH))
        state, loss = step(state, key, batch)
        losses.append(float(loss))
    return losses


# The lines of jaxckpt. The key is an argument like the others, and each dropout mask is drawn as without the plan.
shapes = jax.eval_shape(new_state), jax.random.key(1), jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
as_written = jaxckpt.footprint(train_step, *shapes, target="h200")
plan = jaxckpt.plan(train_step, *shapes, budget=BUDGET, target="h200")
print("as written:", as_written.summary())
print("planned:", plan.summary())
print("losses as written:", train(train_step))
print("losses with plan: ", train(plan.apply(train_step)))
