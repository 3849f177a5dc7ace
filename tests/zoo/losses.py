"""Losses of which more is wanted than one number: auxiliary results, and one gradient an example."""

import jax
import jax.numpy as jnp

from tests.zoo import mlp
from tests.zoo.case import Case, descend


def aux_step(params, x, y):
    """Auxiliary results are activations too, some of them from the middle of the forward pass."""

    def loss_fn(params):
        hidden = mlp.forward(params[:2], x)
        prediction = mlp.forward(params[2:], hidden)
        losses = {"error": jnp.mean((prediction - y) ** 2), "activity": 1e-3 * jnp.mean(hidden**2)}
        return sum(losses.values()), (losses, {"hidden": hidden, "prediction": prediction})

    (loss, (losses, activations)), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    return descend(params, grads), loss, losses, activations


def aux(size: str = "tiny") -> Case:
    return Case(step=aux_step, args=mlp.build(size), donate_argnums=(0,))


def per_example_step(params, x, y):
    """Every example's gradient is clipped before the mean is taken, as private training asks."""

    def clipped_gradient(x, y):
        loss, grad = jax.value_and_grad(mlp.squared_error)(params, x, y)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grad)))
        return loss, jax.tree.map(lambda g: g / jnp.maximum(1.0, norm), grad)

    losses, grads = jax.vmap(clipped_gradient)(x, y)
    return descend(params, jax.tree.map(lambda g: g.mean(0), grads)), losses.mean()


def per_example(size: str = "tiny") -> Case:
    return Case(step=per_example_step, args=mlp.build(size), donate_argnums=(0,))
