"""Gradients gathered over several batches: inside one step by `lax.scan`, or over several steps by `optax.MultiSteps`.

In the first the whole backward pass is in the body of a loop, in the second the update is in the branch of a `cond`.
"""

import jax
import jax.numpy as jnp
import optax

from tests.zoo import mlp
from tests.zoo.case import Case, descend, quick_jit


def scan_step(params, batches_x, batches_y):
    def accumulate(grads, batch):
        loss, grad = jax.value_and_grad(mlp.squared_error)(params, *batch)
        return jax.tree.map(jnp.add, grads, grad), loss

    zeros = jax.tree.map(jnp.zeros_like, params)
    grads, losses = jax.lax.scan(accumulate, zeros, (batches_x, batches_y))
    return descend(params, jax.tree.map(lambda g: g / len(losses), grads)), losses.mean()


def scan(size: str = "tiny") -> Case:
    params, x, y = mlp.build(size)
    return Case(step=scan_step, args=(params, x.reshape(4, -1, x.shape[-1]), y.reshape(4, -1, 1)), donate_argnums=(0,))


def multi_steps(size: str = "tiny") -> Case:
    """The second of two batches: the one on which the parameters move."""
    params, x, y = mlp.build(size)
    optimizer = optax.MultiSteps(optax.adam(1e-2), every_k_schedule=2)

    def train_step(params, opt_state, x, y):
        loss, grads = jax.value_and_grad(mlp.squared_error)(params, x, y)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    params, opt_state, _ = quick_jit(train_step)(params, quick_jit(optimizer.init)(params), x, y)
    return Case(step=train_step, args=(params, opt_state, x, y), donate_argnums=(0, 1))
