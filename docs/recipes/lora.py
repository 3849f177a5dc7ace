"""Low-rank adapters (LoRA) on a frozen bfloat16 model: gradients of the adapters only, fitted into a budget."""

import jax
import jax.numpy as jnp
import optax

import jaxckpt

LAYERS, ROWS, WIDTH, BUDGET = 6, 8192, 256, "260MiB"
RANK = 8
optimizer = optax.adamw(1e-3)


def new_state():
    shapes = (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)
    base, adapters = [], []
    for key in jax.random.split(jax.random.key(0), LAYERS):
        base.append([0.04 * jax.random.normal(key, shape, jnp.bfloat16) for shape in shapes])
        adapters.append([(jax.random.normal(key, (n, RANK)), jnp.zeros((RANK, m))) for n, m in shapes])
    return (adapters, optimizer.init(adapters)), base


def adapted(x, weight, adapter):
    down, up = adapter
    return x @ weight + (x @ down.astype(x.dtype)) @ up.astype(x.dtype)


@jax.jit(donate_argnums=0)
def train_step(state, base, batch):
    adapters, opt_state = state

    def loss_of(adapters):
        x = batch
        for weights, factors in zip(base, adapters, strict=True):
            x += adapted(jax.nn.gelu(adapted(x, weights[0], factors[0])), weights[1], factors[1])
        return jnp.mean((x.astype(jnp.float32) - 1) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(adapters)
    updates, opt_state = optimizer.update(gradients, opt_state, adapters)
    return (optax.apply_updates(adapters, updates), opt_state), loss


def train(step):
    (state, base), losses = new_state(), []
    for number in range(3):
        state, loss = step(state, base, jax.random.normal(jax.random.key(number), (ROWS, WIDTH), jnp.bfloat16))
        losses.append(float(loss))
    return losses


# The lines of jaxckpt. The frozen model is an argument: its bytes are counted, and it has no gradients.
shapes = *jax.eval_shape(new_state), jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.bfloat16)
as_written = jaxckpt.footprint(train_step, *shapes, target="h200")
plan = jaxckpt.plan(train_step, *shapes, budget=BUDGET, target="h200")
print("as written:", as_written.summary())
print("planned:", plan.summary())
print("losses as written:", train(train_step))
print("losses with plan: ", train(plan.apply(train_step)))
