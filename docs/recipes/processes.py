"""Two processes (`jax.distributed`) that train together: process 0 plans, and both carry out the same plan."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxckpt

LAYERS, ROWS, WIDTH, BUDGET = 6, 8192, 256, "80MiB"


def new_params():
    return [0.06 * jax.random.normal(key, (WIDTH, WIDTH)) for key in jax.random.split(jax.random.key(0), LAYERS)]


def train_step(params, batch):
    def loss_of(params):
        x = batch
        for weights in params:
            x += jnp.sin(x @ weights) * jnp.cos(x)
        return jnp.mean((x - 1) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss


def train(step, mesh):
    everywhere, by_rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    params, losses = jax.device_put(new_params(), everywhere), []
    for number in range(3):
        rows = jax.random.normal(jax.random.key(10 * number + jax.process_index()), (ROWS // 2, WIDTH))
        params, loss = step(params, jax.make_array_from_process_local_data(by_rows, np.asarray(rows)))
        losses.append(float(loss))
    return losses


def run(process):
    jax.distributed.initialize("localhost:29517", num_processes=2, process_id=process)
    # The lines of jaxckpt. Every process calls plan_once; only process 0 calls the function and compiles.
    target = jaxckpt.Target("h200:2")
    by_rows = NamedSharding(target.mesh((2,), ("data",)), PartitionSpec("data"))
    shapes = jax.eval_shape(new_params), jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32, sharding=by_rows)
    plan = jaxckpt.plan_once(lambda: jaxckpt.plan(train_step, *shapes, budget=BUDGET, target=target, donate_argnums=0))
    fast = jax.jit(plan.apply(train_step), donate_argnums=0)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    losses, planned_losses = train(jax.jit(train_step), mesh), train(fast, mesh)
    print(f"process {process}: {plan.summary()}\n  losses as written {losses}, with plan {planned_losses}", flush=True)


if sys.argv[1:]:
    run(int(sys.argv[1]))
else:  # a launcher (SLURM, GKE, mpirun) starts the processes in a real run
    processes = [subprocess.Popen([sys.executable, __file__, str(process)]) for process in range(2)]
    sys.exit(max(process.wait() for process in processes))
