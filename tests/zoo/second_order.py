"""Gradients of gradients, as four fields use them; "backward" is then not one phase.

A gradient penalty on a critic, forces as gradients of an energy inside the loss (a graph network, molecular dynamics),
learning through an inner gradient step (meta-learning), and curvature along a random direction (forward over reverse).
"""

import jax
import jax.numpy as jnp
import numpy as np

from tests.zoo import mlp
from tests.zoo.case import SIZES, Case, descend, integers, normal


def gradient_penalty_step(critic, real, fake):
    def loss_fn(critic):
        def score(x):
            return mlp.forward(critic, x)[0]

        slopes = jnp.linalg.norm(jax.vmap(jax.grad(score))((real + fake) / 2), axis=-1)
        separation = jax.vmap(score)(fake).mean() - jax.vmap(score)(real).mean()
        return separation + 10.0 * jnp.mean((slopes - 1) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(critic)
    return descend(critic, grads, rate=1e-3), loss


def gradient_penalty(size: str = "tiny") -> Case:
    params, x, _ = mlp.build(size)
    return Case(step=gradient_penalty_step, args=(params, x, jnp.roll(x, 1, axis=0)), donate_argnums=(0,))


def energy(params, positions, species, senders, receivers):
    """Total energy of a molecule: messages along edges, summed at the atoms, twice."""
    distance = jnp.sqrt(jnp.sum((positions[senders] - positions[receivers]) ** 2, axis=-1) + 1e-2)
    radial = jnp.exp(-((distance[:, None] - jnp.linspace(0.5, 3.0, 8)) ** 2))
    nodes = params["embed"][species]
    for p in params["interactions"]:
        messages = mlp.forward(p["filter"], radial) * nodes[senders]
        nodes = nodes + jax.ops.segment_sum(messages, receivers, num_segments=len(nodes)) @ p["mix"]
    return mlp.forward(params["readout"], nodes).sum()


def forces_step(params, positions, target_forces, *graph):
    def loss_fn(params):
        total, slope = jax.value_and_grad(energy, argnums=1)(params, positions, *graph)
        return jnp.mean((-slope - target_forces) ** 2), total

    (loss, total), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    return descend(params, grads, rate=1e-2), loss, total


def forces(size: str = "tiny") -> Case:
    s = SIZES[size]
    draw = np.random.default_rng(0)
    atoms = s.batch * s.length
    params = {
        "embed": normal(draw, 4, s.width),
        "interactions": [
            {"filter": mlp.params_of(draw, 8, s.width, s.width), "mix": 0.1 * normal(draw, s.width, s.width)}
            for _ in range(2)
        ],
        "readout": mlp.params_of(draw, s.width, s.width, 1),
    }
    edges = (integers(draw, atoms, 4 * atoms), integers(draw, atoms, 4 * atoms))
    args = (params, normal(draw, atoms, 3), normal(draw, atoms, 3), integers(draw, 4, atoms), *edges)
    return Case(step=forces_step, args=args, donate_argnums=(0,))


def meta_learning_step(params, support, query):
    def adapted_loss(params):
        adapted = descend(params, jax.grad(mlp.squared_error)(params, *support))
        return mlp.squared_error(adapted, *query)

    loss, grads = jax.value_and_grad(adapted_loss)(params)
    return descend(params, grads), loss


def meta_learning(size: str = "tiny") -> Case:
    params, x, y = mlp.build(size)
    half = len(x) // 2
    return Case(step=meta_learning_step, args=(params, (x[:half], y[:half]), (x[half:], y[half:])), donate_argnums=(0,))


def curvature_step(params, direction, x, y):
    """A step along the gradient, scaled by the Hessian along a direction."""

    def gradient(params):
        return jax.grad(mlp.squared_error)(params, x, y)

    grads, hessian_direction = jax.jvp(gradient, (params,), (direction,))
    return jax.tree.map(lambda p, g, h: p - 0.1 * g / (1 + jnp.abs(h)), params, grads, hessian_direction)


def curvature(size: str = "tiny") -> Case:
    params, x, y = mlp.build(size)
    draw = np.random.default_rng(1)
    direction = jax.tree.map(lambda p: normal(draw, *p.shape), params)
    return Case(step=curvature_step, args=(params, direction, x, y))
