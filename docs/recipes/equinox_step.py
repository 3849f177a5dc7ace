"""An Equinox training step under `eqx.filter_jit`, fitted into a budget."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import jaxckpt

LAYERS, ROWS, WIDTH, BUDGET = 6, 8192, 256, "430MiB"
optimizer = optax.adamw(1e-3)


class Block(eqx.Module):
    norm: eqx.nn.LayerNorm
    mlp: eqx.nn.MLP

    def __init__(self, key):
        self.norm = eqx.nn.LayerNorm(WIDTH)
        self.mlp = eqx.nn.MLP(WIDTH, WIDTH, 4 * WIDTH, depth=1, activation=jax.nn.gelu, key=key)

    def __call__(self, x):
        return x + self.mlp(self.norm(x))


def new_state():
    model = eqx.nn.Sequential([eqx.nn.Lambda(Block(key)) for key in jax.random.split(jax.random.key(0), LAYERS)])
    return model, optimizer.init(eqx.filter(model, eqx.is_array))


@eqx.filter_jit(donate="all-except-first")
def train_step(batch, model, opt_state):
    loss_of = eqx.filter_value_and_grad(lambda model: jnp.mean((jax.vmap(model)(batch) - 1) ** 2))
    loss, gradients = loss_of(model)
    updates, opt_state = optimizer.update(gradients, opt_state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), opt_state, loss


def train(step):
    (model, opt_state), losses = new_state(), []
    for number in range(3):
        batch = jax.random.normal(jax.random.key(number), (ROWS, WIDTH))
        model, opt_state, loss = step(batch, model, opt_state)
        losses.append(float(loss))
    return losses


# The lines of jaxckpt. A model of shapes suffices: eqx.filter_eval_shape allocates nothing.
shapes = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32), *eqx.filter_eval_shape(new_state)
as_written = jaxckpt.footprint(train_step, *shapes, target="h200")
plan = jaxckpt.plan(train_step, *shapes, budget=BUDGET, target="h200")
print("as written:", as_written.summary())
print("planned:", plan.summary())
print("losses as written:", train(train_step))
print("losses with plan: ", train(plan.apply(train_step)))
