"""Steps with nothing to plan: no gradient at all, only a forward derivative, or nothing."""

import jax
import jax.numpy as jnp

from tests.zoo import mlp
from tests.zoo.case import Case


def evaluation_step(params, x, y):
    prediction = mlp.forward(params, x)
    return {"error": jnp.mean((prediction - y) ** 2), "bias": jnp.mean(prediction - y)}


def evaluation(size: str = "tiny") -> Case:
    return Case(step=evaluation_step, args=mlp.build(size))


def forward_gradient_step(params, direction, x, y):
    """Moves along a random direction by the slope there: a derivative without a backward pass."""
    loss, slope = jax.jvp(lambda p: mlp.squared_error(p, x, y), (params,), (direction,))
    return jax.tree.map(lambda p, d: p - 0.1 * slope * d, params, direction), loss


def forward_gradient(size: str = "tiny") -> Case:
    params, x, y = mlp.build(size)
    return Case(step=forward_gradient_step, args=(params, jax.tree.map(jnp.ones_like, params), x, y))


def identity(size: str = "tiny") -> Case:
    params, x, _ = mlp.build(size)
    return Case(step=lambda params, x: (params, x), args=(params, x), donate_argnums=(0,))
