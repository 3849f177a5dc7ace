"""Parameters sharded over four devices, batches over two, planned for eight H200s that are not attached."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxckpt

LAYERS, ROWS, WIDTH, BUDGET = 6, 16384, 256, "115MiB"
jax.config.update("jax_num_cpu_devices", 8)  # only to run the step on a machine without eight accelerators


def new_params():
    wide, narrow = jax.random.split(jax.random.key(0))
    return {
        "wide": 0.05 * jax.random.normal(wide, (LAYERS, WIDTH, 4 * WIDTH)),
        "narrow": 0.05 * jax.random.normal(narrow, (LAYERS, 4 * WIDTH, WIDTH)),
    }


def train_step(params, batch):
    def loss_of(params):
        x = batch
        for layer in range(LAYERS):
            x += jax.nn.gelu(x @ params["wide"][layer]) @ params["narrow"][layer]
        return jnp.mean((x - 1) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(params)
    return jax.tree.map(lambda p, g: p - 1e-2 * g, params, gradients), loss


def jitted(step, mesh):
    model_axis = {"wide": PartitionSpec(None, None, "model"), "narrow": PartitionSpec(None, "model")}
    params = {name: NamedSharding(mesh, spec) for name, spec in model_axis.items()}
    batch = NamedSharding(mesh, PartitionSpec("data"))
    return jax.jit(step, in_shardings=(params, batch), out_shardings=(params, None), donate_argnums=0)


def train(step):
    params, losses = new_params(), []
    for number in range(3):
        params, loss = step(params, jax.random.normal(jax.random.key(number), (ROWS, WIDTH)))
        losses.append(float(loss))
    return losses


# The lines of jaxckpt. The mesh of a target has devices that exist for the compiler only.
target = jaxckpt.Target("h200:8")
planned_for = jitted(train_step, target.mesh((2, 4), ("data", "model")))
shapes = jax.eval_shape(new_params), jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
as_written = jaxckpt.footprint(planned_for, *shapes, target=target)
plan = jaxckpt.plan(planned_for, *shapes, budget=BUDGET, target=target)

mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
print("as written:", as_written.summary())
print("planned:", plan.summary())
print("losses as written:", train(jitted(train_step, mesh)))
print("losses with plan: ", train(jitted(plan.apply(train_step), mesh)))
