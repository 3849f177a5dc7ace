"""Gradients of gradients: forces of interatomic potentials, Hamiltonian dynamics, differential equations as a loss."""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.strangers.layers import dense, dense_weights, mlp, mlp_weights
from benchmarks.strangers.training import Recipe, array, as_written, integers, training_step
from jaxckpt import Step


def potential(
    *, atoms: int = 16_384, edges: int = 1_048_576, width: int = 128, radial: int = 64, interactions: int = 4,
    species: int = 100, dtype: str = "float32", wrap: Any = as_written,
) -> Step:  # fmt: skip
    """SchNet (Schütt and others 2017): filters of distances, a loss of the energy and of the forces."""

    @wrap
    def interaction(
        weights: Any, x: jax.Array, basis: jax.Array, senders: jax.Array, receivers: jax.Array
    ) -> jax.Array:
        filters = mlp(weights["filter"], basis, jax.nn.softplus)
        messages = (x @ weights["in"])[senders] * filters
        return x + mlp(weights["out"], jax.ops.segment_sum(messages, receivers, x.shape[0]), jax.nn.softplus)

    def energy(
        weights: Any, places: jax.Array, kinds: jax.Array, senders: jax.Array, receivers: jax.Array
    ) -> jax.Array:
        distances = jnp.sqrt(jnp.sum(jnp.square(places[senders] - places[receivers]), -1) + 1e-6)
        basis = jnp.exp(-10.0 * jnp.square(distances[:, None] - jnp.linspace(0, 5, radial, dtype=places.dtype)))
        x = weights["species"][kinds]
        for each in weights["interactions"]:
            x = interaction(each, x, basis, senders, receivers)
        return mlp(weights["head"], x, jax.nn.softplus).sum()

    def loss(weights: Any, places: jax.Array, kinds: jax.Array, ends: Any, known: Any) -> jax.Array:
        value, slopes = jax.value_and_grad(energy, argnums=1)(weights, places, kinds, *ends)
        return jnp.square(value - known["energy"]) + jnp.mean(jnp.square(slopes + known["forces"]))

    layer = {
        "filter": mlp_weights((radial, width, width), dtype),
        "in": array(width, width, dtype=dtype),
        "out": mlp_weights((width, width, width), dtype),
    }
    weights = {
        "species": array(species, width, dtype=dtype),
        "interactions": [layer] * interactions,
        "head": mlp_weights((width, width // 2, 1), dtype),
    }
    places = array(atoms, 3, dtype=dtype)
    known = {"energy": array(dtype=dtype), "forces": places}
    return training_step(loss, weights, places, integers(atoms), (integers(edges), integers(edges)), known)


def hamiltonian(
    *, width: int = 512, layers: int = 6, rows: int = 32768, size: int = 32, wrap: Any = as_written
) -> Step:
    """A Hamiltonian network (Greydanus and others 2019): its gradients are the motion that the loss compares."""

    @wrap
    def block(weights: Any, x: jax.Array) -> jax.Array:
        return x + jnp.tanh(dense(weights, x))

    def energy(weights: Any, state: jax.Array) -> jax.Array:
        x = dense(weights["entry"], state)
        for each in weights["layers"]:
            x = block(each, x)
        return dense(weights["head"], x).sum()

    def loss(weights: Any, state: jax.Array, motion: jax.Array) -> jax.Array:
        by_place, by_momentum = jnp.split(jax.grad(energy, argnums=1)(weights, state), 2, axis=-1)
        return jnp.mean(jnp.square(jnp.concatenate([by_momentum, -by_place], axis=-1) - motion))

    weights = {
        "entry": dense_weights(2 * size, width),
        "layers": [dense_weights(width, width)] * layers,
        "head": dense_weights(width, 1),
    }
    return training_step(loss, weights, array(rows, 2 * size), array(rows, 2 * size))


def heat_equation(*, width: int = 256, layers: int = 6, points: int = 65536, wrap: Any = as_written) -> Step:
    """A network that obeys an equation (Raissi and others 2019): its second derivatives by forward mode."""

    @wrap
    def block(weights: Any, x: jax.Array) -> jax.Array:
        return jnp.tanh(dense(weights, x))

    def heat(weights: Any, place: jax.Array, time: jax.Array) -> jax.Array:
        x = dense(weights["entry"], jnp.stack([place, time], axis=-1))
        for each in weights["layers"]:
            x = block(each, x)
        return dense(weights["head"], x)[..., 0]

    def loss(weights: Any, places: jax.Array, times: jax.Array) -> jax.Array:
        ones = jnp.ones_like(places)

        def slope(places: jax.Array) -> jax.Array:
            return jax.jvp(lambda p: heat(weights, p, times), (places,), (ones,))[1]

        curvature = jax.jvp(slope, (places,), (ones,))[1]
        rate = jax.jvp(lambda t: heat(weights, places, t), (times,), (ones,))[1]
        return jnp.mean(jnp.square(rate - 0.1 * curvature))

    weights = {
        "entry": dense_weights(2, width),
        "layers": [dense_weights(width, width)] * layers,
        "head": dense_weights(width, 1),
    }
    return training_step(loss, weights, array(points), array(points))


POTENTIAL_SMALL = {"atoms": 6, "edges": 20, "width": 8, "radial": 4, "interactions": 2, "species": 3}

NAMED = {"potential-forces": Recipe(family="force loss", build=potential, small=POTENTIAL_SMALL)}

RECIPES = {
    "potential": Recipe(
        family="force loss",
        build=potential,
        small=POTENTIAL_SMALL,
        choices={"edges": (131_072, 262_144), "width": (64, 128, 192), "interactions": (3, 4, 6)},
        draws=2,
    ),
    "hamiltonian": Recipe(
        family="force loss",
        build=hamiltonian,
        small={"width": 8, "layers": 2, "rows": 4, "size": 2},
        choices={"width": (512, 1024), "layers": (4, 6, 8)},
    ),
    "heat-equation": Recipe(
        family="differential equation",
        build=heat_equation,
        small={"width": 8, "layers": 2, "points": 6},
        choices={"width": (256, 512), "layers": (4, 6, 8), "points": (65536, 131072)},
    ),
}
