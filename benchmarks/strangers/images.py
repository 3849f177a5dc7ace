"""Convolutions: plain and dense networks with batch normalisation, U-Nets in two and three dimensions, contrasts."""

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.strangers.layers import (
    batch_norm,
    conv,
    conv_weights,
    cross_entropy,
    dense,
    dense_weights,
    enlarged,
    mean_square,
    mlp,
    mlp_weights,
    norm_weights,
    transformer_block,
    transformer_weights,
)
from benchmarks.strangers.training import Recipe, array, as_written, integers, training_step
from jaxckpt import Step


def conv_block_weights(inputs: int, outputs: int, *, dimensions: int = 2, dtype: Any = jnp.float32) -> dict[str, Any]:
    return {
        "conv": conv_weights(inputs, outputs, dimensions=dimensions, dtype=dtype),
        "norm": norm_weights(outputs, dtype),
    }


def conv_block(weights: Any, x: jax.Array) -> jax.Array:
    """A convolution, batch normalisation and ReLU."""
    return jax.nn.relu(batch_norm(weights["norm"], conv(weights["conv"], x)))


def halved(x: jax.Array) -> jax.Array:
    """Every spatial dimension halved, by its largest value."""
    window = (1, *(2,) * (x.ndim - 2), 1)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")


def plain_convolutions(
    *, width: int = 64, stages: int = 4, layers: int = 3, batch: int = 64, size: int = 128, classes: int = 100,
    dtype: str = "float32", wrap: Any = as_written,
) -> Step:  # fmt: skip
    """A stack without residual connections (Simonyan and Zisserman 2014), with batch normalisation."""
    block = wrap(conv_block)

    def loss(weights: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        for stage in weights["stages"]:
            for each in stage:
                x = block(each, x)
            x = halved(x)
        return cross_entropy(dense(weights["head"], x.mean((1, 2))), labels)

    widths = [3] + [width * 2**i for i in range(stages)]
    weights = {
        "stages": [
            [conv_block_weights(before, after, dtype=dtype)]
            + [conv_block_weights(after, after, dtype=dtype)] * (layers - 1)
            for before, after in pairwise(widths)
        ],
        "head": dense_weights(widths[-1], classes, dtype),
    }
    return training_step(loss, weights, array(batch, size, size, 3, dtype=dtype), integers(batch))


def dense_convolutions(
    *, growth: int = 32, layers: int = 12, batch: int = 64, size: int = 64, classes: int = 100,
    dtype: str = "float32", wrap: Any = as_written,
) -> Step:  # fmt: skip
    """Each layer reads the results of all layers before (Huang and others 2017)."""

    @wrap
    def block(weights: Any, x: jax.Array) -> jax.Array:
        return jnp.concatenate([x, conv(weights["conv"], jax.nn.relu(batch_norm(weights["norm"], x)))], axis=-1)

    def loss(weights: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        x = conv(weights["entry"], x)
        for each in weights["layers"]:
            x = block(each, x)
        return cross_entropy(dense(weights["head"], x.mean((1, 2))), labels)

    widths = [2 * growth + i * growth for i in range(layers + 1)]
    weights = {
        "entry": conv_weights(3, widths[0], dtype=dtype),
        "layers": [
            {"norm": norm_weights(width, dtype), "conv": conv_weights(width, growth, dtype=dtype)}
            for width in widths[:-1]
        ],
        "head": dense_weights(widths[-1], classes, dtype),
    }
    return training_step(loss, weights, array(batch, size, size, 3, dtype=dtype), integers(batch))


def unet(
    *, width: int = 32, levels: int = 4, batch: int = 4, size: int = 256, dimensions: int = 2, dtype: str = "float32",
    wrap: Any = as_written,
) -> Step:  # fmt: skip
    """Two convolutions a level on the way down and on the way up; each level's result is read on the way up."""

    @wrap
    def level(weights: Any, x: jax.Array) -> jax.Array:
        return conv_block(weights["second"], conv_block(weights["first"], x))

    def loss(weights: Any, x: jax.Array, wanted: jax.Array) -> jax.Array:
        results = []
        for each in weights["down"]:
            x = level(each, x)
            results.append(x)
            x = halved(x)
        x = level(weights["middle"], x)
        for each, result in zip(weights["up"], reversed(results), strict=True):
            x = level(each, jnp.concatenate([enlarged(x), result], axis=-1))
        return mean_square(dense(weights["head"], x) - wanted)

    def two(inputs: int, outputs: int) -> dict[str, Any]:
        return {
            "first": conv_block_weights(inputs, outputs, dimensions=dimensions, dtype=dtype),
            "second": conv_block_weights(outputs, outputs, dimensions=dimensions, dtype=dtype),
        }

    widths = [width * 2**i for i in range(levels)]
    weights = {
        "down": [two(before, after) for before, after in zip([1, *widths[:-1]], widths, strict=True)],
        "middle": two(widths[-1], 2 * widths[-1]),
        "up": [two(3 * each, each) for each in reversed(widths)],
        "head": dense_weights(width, 1, dtype),
    }
    image = array(batch, *(size,) * dimensions, 1, dtype=dtype)
    return training_step(loss, weights, image, image)


def two_views(
    *, width: int = 64, layers: int = 8, batch: int = 256, size: int = 32, features: int = 128, dtype: str = "float32",
    wrap: Any = as_written,
) -> Step:  # fmt: skip
    """Two views of an image attract, all others repel (Chen and others 2020)."""

    @wrap
    def block(weights: Any, x: jax.Array) -> jax.Array:
        return x + conv_block(weights, x)

    def encoded(weights: Any, x: jax.Array) -> jax.Array:
        x = conv(weights["entry"], x)
        for each in weights["layers"]:
            x = block(each, x)
        x = mlp(weights["head"], x.mean((1, 2)), jax.nn.relu).astype(jnp.float32)
        return x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + 1e-6)

    def loss(weights: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        similarities = encoded(weights, x) @ encoded(weights, y).T / 0.1
        return cross_entropy(similarities, jnp.arange(batch))

    weights = {
        "entry": conv_weights(3, width, dtype=dtype),
        "layers": [conv_block_weights(width, width, dtype=dtype)] * layers,
        "head": mlp_weights((width, width, features), dtype),
    }
    views = array(batch, size, size, 3, dtype=dtype)
    return training_step(loss, weights, views, views)


def two_towers(
    *, width: int = 512, heads: int = 8, layers: int = 6, batch: int = 128, patches: int = 196, words: int = 77,
    dtype: str = "bfloat16", wrap: Any = as_written,
) -> Step:  # fmt: skip
    """Images and texts, each through a transformer of its own (Radford and others 2021)."""

    @wrap
    def block(weights: Any, x: jax.Array) -> jax.Array:
        return transformer_block(weights, x, heads=heads)

    def encoded(tower: Any, x: jax.Array) -> jax.Array:
        for each in tower:
            x = block(each, x)
        x = x.mean(1).astype(jnp.float32)
        return x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + 1e-6)

    def loss(weights: Any, image: jax.Array, tokens: jax.Array) -> jax.Array:
        images = encoded(weights["image"], dense(weights["patches"], image))
        texts = encoded(weights["text"], weights["embedding"][tokens])
        similarities, labels = images @ texts.T / 0.07, jnp.arange(batch)
        return cross_entropy(similarities, labels) + cross_entropy(similarities.T, labels)

    tower = [transformer_weights(width, 4 * width, dtype)] * layers
    weights = {
        "patches": dense_weights(768, width, dtype),
        "embedding": array(10_000, width, dtype=dtype),
        "image": tower,
        "text": tower,
    }
    return training_step(loss, weights, array(batch, patches, 768, dtype=dtype), integers(batch, words))


DTYPES = {"dtype": ("float32", "bfloat16")}

RECIPES = {
    "plain-convolutions": Recipe(
        family="batch norm",
        build=plain_convolutions,
        small={"width": 4, "stages": 2, "layers": 2, "batch": 2, "size": 8, "classes": 3},
        choices={"width": (32, 64), "layers": (2, 3, 4), "batch": (32, 64), **DTYPES},
        draws=2,
    ),
    "dense-convolutions": Recipe(
        family="batch norm",
        build=dense_convolutions,
        small={"growth": 4, "layers": 2, "batch": 2, "size": 4, "classes": 3},
        choices={"growth": (16, 32), "layers": (8, 12, 16), "batch": (32, 64)},
    ),
    "unet-2d": Recipe(
        family="u-net",
        build=unet,
        small={"width": 4, "levels": 2, "batch": 1, "size": 8},
        choices={"width": (16, 32, 48), "levels": (3, 4), "batch": (8, 16), **DTYPES},
        draws=2,
    ),
    "unet-3d": Recipe(
        family="u-net",
        build=unet,
        small={"width": 4, "levels": 2, "batch": 1, "size": 8},
        choices={"dimensions": (3,), "size": (64, 96), "batch": (1, 2), "levels": (3,), "width": (16, 32)},
    ),
    "two-views": Recipe(
        family="contrastive",
        build=two_views,
        small={"width": 4, "layers": 2, "batch": 4, "size": 8, "features": 4},
        choices={"width": (64, 96), "layers": (6, 10), "batch": (256, 512), **DTYPES},
    ),
    "two-towers": Recipe(
        family="contrastive",
        build=two_towers,
        small={"width": 16, "heads": 2, "layers": 2, "batch": 2, "patches": 4, "words": 3},
        choices={"width": (512, 768), "layers": (6, 8), "batch": (64, 128)},
    ),
}
