"""The post-mortem of a step that ran out of memory: what XLA said, what would have helped, and a plan that fits."""

import jax
import jax.numpy as jnp

import jaxckpt
from jaxckpt.oom import read_out_of_memory
from jaxckpt.report import oom_report, render_text

STEPS, ROWS, WIDTH, BUDGET = 65536, 32768, 256, "100GiB"


@jax.jit(donate_argnums=0)
def train_step(weights, batch):
    def loss_of(weights):
        def cell(state, _):
            return jnp.tanh(state @ weights), None

        state, _ = jax.lax.scan(cell, batch, length=STEPS)
        return jnp.mean((state - 1) ** 2)

    loss, gradient = jax.value_and_grad(loss_of)(weights)
    return weights - 0.1 * gradient, loss


weights = 0.06 * jax.random.normal(jax.random.key(0), (WIDTH, WIDTH))
batch = jnp.ones((ROWS, WIDTH))
try:
    jax.block_until_ready(train_step(weights, batch))  # the scan saves the state of every step: terabytes
except jax.errors.JaxRuntimeError as error:
    message = str(error)

# The lines of jaxckpt. In a job, the message is in the log: `jaxckpt explain-oom train.log` prints the same.
crash = read_out_of_memory(message)
print(render_text(oom_report(crash), width=100))

# The message of an allocator has no layers. The compiled step has: what was alive at the peak, and from which line.
as_written = jaxckpt.footprint(train_step, weights, batch, target="h200")
print("as written:", as_written.summary())
plan = jaxckpt.plan(train_step, weights, batch, budget=BUDGET, target="h200")
print("planned:", plan.summary())
