"""The frontier of memory and time of a step, and the plan that a person chooses from it, as cells of a notebook."""

import jax
import jax.numpy as jnp

import jaxckpt

LAYERS, ROWS, WIDTH, BUDGET = 6, 8192, 1024, "320MiB"


# %% The step
@jax.jit(donate_argnums=0)
def train_step(params, batch):
    def loss_of(params):
        x = batch
        for wide, narrow in params:
            x += jax.nn.gelu(x @ wide) @ narrow
        return jnp.mean((x - 1) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(params)
    return jax.tree.map(lambda p, g: p - 1e-2 * g, params, gradients), loss


block = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((WIDTH, WIDTH), (WIDTH, WIDTH)))
args = [tuple(block)] * LAYERS, jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)

# %% The frontier: a notebook draws it where a cell ends with `frontier`.
frontier = jaxckpt.pareto(train_step, *args, target="h200", points=4)
for point in frontier:
    print(f"{point.total_bytes / 2**20:6.1f} MiB, estimated {1e3 * point.step_s:.3f} ms")

# %% A plan for the budget that the frontier suggests, without another compile.
plan = frontier.at(BUDGET)
print("planned:", plan.summary())
print(plan)

# %% A map of its memory, which opens in a browser.
jaxckpt.draw(plan.footprint, "memory.html")
plan.save("plan.toml")
