"""Gradients accumulated over small batches by `optax.MultiSteps`, planned at the peak of every step."""

import jax
import jax.numpy as jnp
import optax

import jaxckpt

LAYERS, ROWS, WIDTH, BUDGET = 6, 8192, 256, "440MiB"
EVERY = 4  # small batches for each update of the parameters

optimizer = optax.MultiSteps(optax.adamw(1e-3), every_k_schedule=EVERY)


def new_state():
    wide, narrow = jax.random.split(jax.random.key(0))
    params = {
        "wide": 0.05 * jax.random.normal(wide, (LAYERS, WIDTH, 4 * WIDTH)),
        "narrow": 0.05 * jax.random.normal(narrow, (LAYERS, 4 * WIDTH, WIDTH)),
    }
    return params, optimizer.init(params)


@jax.jit(donate_argnums=0)
def train_step(state, batch):
    params, opt_state = state

    def loss_of(params):
        x = batch
        for layer in range(LAYERS):
            x += jax.nn.gelu(x @ params["wide"][layer]) @ params["narrow"][layer]
        return jnp.mean((x - 1) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(params)
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), loss


def train(step):
    state, losses = new_state(), []
    for number in range(2 * EVERY):
        batch = jax.random.normal(jax.random.key(number % EVERY), (ROWS, WIDTH))
        state, loss = step(state, batch)
        losses.append(round(float(loss), 5))
    return losses


# The lines of jaxckpt. One plan serves all steps: the compiled step contains the update and the step without one.
shapes = jax.eval_shape(new_state), jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
as_written = jaxckpt.footprint(train_step, *shapes, target="h200")
plan = jaxckpt.plan(train_step, *shapes, budget=BUDGET, target="h200")
print("as written:", as_written.summary())
print("planned:", plan.summary())
print("losses as written:", train(train_step))
print("losses with plan: ", train(plan.apply(train_step)))
