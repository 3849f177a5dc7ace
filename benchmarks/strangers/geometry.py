"""Points, rays and fields: edges between neighbours, sets of points, Fourier operators, radiance along rays."""

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.strangers.layers import (
    batch_norm,
    cross_entropy,
    dense,
    dense_weights,
    mean_square,
    mlp,
    mlp_weights,
    norm_weights,
)
from benchmarks.strangers.training import Recipe, array, as_written, integers, training_step
from jaxckpt import Step


def neighbour_edges(
    *, width: int = 64, layers: int = 4, batch: int = 16, points: int = 1024, neighbours: int = 20, classes: int = 40,
    wrap: Any = as_written,
) -> Step:  # fmt: skip
    """Edges to the nearest points, found anew in every layer (Wang and others 2019)."""

    @wrap
    def block(weights: Any, x: jax.Array) -> jax.Array:
        fixed = jax.lax.stop_gradient(x)
        lengths = jnp.square(fixed).sum(-1)
        closeness = 2 * fixed @ fixed.swapaxes(1, 2) - lengths[:, None] - lengths[..., None]
        nearest = jax.lax.top_k(closeness, neighbours)[1]
        others = jax.vmap(lambda x, index: x[index])(x, nearest)
        mine = jnp.broadcast_to(x[:, :, None], others.shape)
        edges = dense(weights["edge"], jnp.concatenate([mine, others - mine], axis=-1))
        return jax.nn.leaky_relu(batch_norm(weights["norm"], edges), 0.2).max(2)

    def loss(weights: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        results = []
        for each in weights["layers"]:
            x = block(each, x)
            results.append(x)
        return cross_entropy(mlp(weights["head"], jnp.concatenate(results, -1).max(1), jax.nn.relu), labels)

    widths = [3] + [width] * layers
    weights = {
        "layers": [
            {"edge": dense_weights(2 * before, after), "norm": norm_weights(after)}
            for before, after in pairwise(widths)
        ],
        "head": mlp_weights((width * layers, 256, classes)),
    }
    return training_step(loss, weights, array(batch, points, 3), integers(batch))


def point_sets(
    *, width: int = 256, layers: int = 5, batch: int = 64, points: int = 2048, classes: int = 16,
    dtype: str = "float32", wrap: Any = as_written,
) -> Step:  # fmt: skip
    """Perceptrons of each point beside the largest of all points (Qi and others 2017), a class for each point."""

    @wrap
    def block(weights: Any, x: jax.Array) -> jax.Array:
        largest = jnp.broadcast_to(x.max(1, keepdims=True), x.shape)
        hidden = dense(weights["dense"], jnp.concatenate([x, largest], axis=-1))
        return jax.nn.relu(batch_norm(weights["norm"], hidden))

    def loss(weights: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        x = dense(weights["entry"], x)
        for each in weights["layers"]:
            x = block(each, x)
        return cross_entropy(dense(weights["head"], x), labels)

    layer = {"dense": dense_weights(2 * width, width, dtype), "norm": norm_weights(width, dtype)}
    weights = {
        "entry": dense_weights(3, width, dtype),
        "layers": [layer] * layers,
        "head": dense_weights(width, classes, dtype),
    }
    return training_step(loss, weights, array(batch, points, 3, dtype=dtype), integers(batch, points))


def fourier_operator(
    *, width: int = 64, layers: int = 4, batch: int = 16, size: int = 128, modes: int = 16, wrap: Any = as_written
) -> Step:
    """Products of the lowest frequencies with weights (Li and others 2021), of real and imaginary parts apart."""

    def product(weights: jax.Array, real: jax.Array, imaginary: jax.Array) -> jax.Array:
        return jnp.einsum("bxyi,xyio->bxyo", jnp.concatenate([real, imaginary], axis=-1), weights)

    @wrap
    def block(weights: Any, x: jax.Array) -> jax.Array:
        spectrum = jnp.fft.rfft2(x, axes=(1, 2))
        lowest = spectrum[:, :modes, :modes]
        real, imaginary = (product(part, lowest.real, lowest.imag) for part in weights["modes"])
        padding = [(0, 0), *((0, have - modes) for have in spectrum.shape[1:3]), (0, 0)]
        filtered = jnp.pad(jax.lax.complex(real, imaginary), padding)
        return jax.nn.gelu(jnp.fft.irfft2(filtered, s=x.shape[1:3], axes=(1, 2)) + dense(weights["dense"], x))

    def loss(weights: Any, x: jax.Array, wanted: jax.Array) -> jax.Array:
        x = dense(weights["entry"], x)
        for each in weights["layers"]:
            x = block(each, x)
        return mean_square(mlp(weights["head"], x, jax.nn.gelu) - wanted)

    layer = {"modes": (array(modes, modes, 2 * width, width),) * 2, "dense": dense_weights(width, width)}
    weights = {
        "entry": dense_weights(3, width),
        "layers": [layer] * layers,
        "head": mlp_weights((width, 128, 1)),
    }
    return training_step(loss, weights, array(batch, size, size, 3), array(batch, size, size, 1))


def radiance_field(
    *, width: int = 256, layers: int = 8, rays: int = 4096, samples: int = 128, dtype: str = "float32",
    wrap: Any = as_written,
) -> Step:  # fmt: skip
    """Colour and density along rays, gathered by a running product (Mildenhall and others 2020)."""

    @wrap
    def block(weights: Any, x: jax.Array) -> jax.Array:
        return jax.nn.relu(dense(weights, x))

    def loss(weights: Any, places: jax.Array, wanted: jax.Array) -> jax.Array:
        angles = places[..., None] * 2.0 ** jnp.arange(10, dtype=places.dtype)
        angles = angles.reshape(rays, samples, -1)
        x = dense(weights["entry"], jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1))
        for each in weights["layers"]:
            x = block(each, x)
        outputs = dense(weights["head"], x).astype(jnp.float32)
        opacity = 1 - jnp.exp(-jax.nn.relu(outputs[..., 3]) / samples)
        passing = jnp.cumprod(1 - opacity + 1e-6, axis=1) / (1 - opacity + 1e-6)
        colour = jnp.sum((opacity * passing)[..., None] * jax.nn.sigmoid(outputs[..., :3]), axis=1)
        return mean_square(colour - wanted)

    weights = {
        "entry": dense_weights(60, width, dtype),
        "layers": [dense_weights(width, width, dtype)] * layers,
        "head": dense_weights(width, 4, dtype),
    }
    return training_step(loss, weights, array(rays, samples, 3, dtype=dtype), array(rays, 3))


RECIPES = {
    "neighbour-edges": Recipe(
        family="point cloud",
        build=neighbour_edges,
        small={"width": 8, "layers": 2, "batch": 2, "points": 6, "neighbours": 2, "classes": 3},
        choices={"width": (64, 96), "layers": (3, 4), "batch": (8, 16, 32)},
        draws=2,
    ),
    "point-sets": Recipe(
        family="point cloud",
        build=point_sets,
        small={"width": 8, "layers": 2, "batch": 2, "points": 5, "classes": 3},
        choices={"width": (128, 256), "layers": (4, 6), "batch": (32, 64), "dtype": ("float32", "bfloat16")},
    ),
    "fourier-operator": Recipe(
        family="fourier operator",
        build=fourier_operator,
        small={"width": 4, "layers": 2, "batch": 2, "size": 8, "modes": 2},
        choices={"width": (32, 64), "layers": (4, 6), "batch": (16, 32)},
    ),
    "radiance-field": Recipe(
        family="radiance field",
        build=radiance_field,
        small={"width": 8, "layers": 2, "rays": 3, "samples": 4},
        choices={"width": (128, 256), "layers": (6, 8), "dtype": ("float32", "bfloat16")},
    ),
}
