"""Updates that wait for every gradient, so that all are alive at once: clipping by the global norm, loss scaling."""

import jax
import jax.numpy as jnp
import optax

from tests.zoo import mlp
from tests.zoo.case import Case, quick_jit


def global_norm(size: str = "tiny") -> Case:
    params, x, y = mlp.build(size)
    optimizer = optax.chain(
        optax.clip_by_global_norm(0.1), optax.add_decayed_weights(1e-2), optax.sgd(0.1, momentum=0.9)
    )

    def train_step(params, opt_state, x, y):
        loss, grads = jax.value_and_grad(mlp.squared_error)(params, x, y)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return Case(step=train_step, args=(params, quick_jit(optimizer.init)(params), x, y), donate_argnums=(0, 1))


def skipped_if_not_finite(size: str = "tiny") -> Case:
    """A loss scale that halves, and an update that is left out, when a gradient overflows."""
    params, x, y = mlp.build(size)

    def train_step(params, scale, x, y):
        scaled, grads = jax.value_and_grad(lambda p: scale * mlp.squared_error(p, x, y))(params)
        grads = jax.tree.map(lambda g: g / scale, grads)
        finite = jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]).all()
        moved = jax.tree.map(lambda p, g: jnp.where(finite, p - 0.1 * g, p), params, grads)
        return moved, jnp.where(finite, scale, scale / 2), scaled / scale

    return Case(step=train_step, args=(params, jnp.float32(1024.0), x, y), donate_argnums=(0, 1))
