"""Multilayer perceptrons: plain, residual, with biases, dropout or batch normalisation, and mixing tokens."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.strangers.layers import (
    ACTIVATIONS,
    batch_norm,
    cross_entropy,
    dense,
    dense_weights,
    dropout,
    layer_norm,
    mean_square,
    mlp,
    mlp_weights,
    norm_weights,
)
from benchmarks.strangers.training import (
    Recipe,
    array,
    as_written,
    descent_step,
    integers,
    random_key,
    training_step,
)
from jaxckpt import Step


def plain_mlp(
    *, width: int = 1024, layers: int = 16, rows: int = 65536, activation: str = "tanh", dtype: str = "float32",
    wrap: Any = as_written,
) -> Step:  # fmt: skip
    """Square products and activations; with the defaults, README's example."""

    @wrap
    def block(w: jax.Array, x: jax.Array) -> jax.Array:
        return ACTIVATIONS[activation](x @ w)

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for w in weights:
            x = block(w, x)
        return jnp.mean(x**2)

    return descent_step(loss, [array(width, width, dtype=dtype)] * layers, array(rows, width, dtype=dtype))


def residual_mlp(
    *, width: int = 1024, hidden: int = 4096, layers: int = 12, rows: int = 16384, activation: str = "gelu",
    dtype: str = "bfloat16", normalised: bool = False, wrap: Any = as_written,
) -> Step:  # fmt: skip
    """Two products and an activation beside a residual connection."""

    @wrap
    def block(weights: Any, x: jax.Array) -> jax.Array:
        entering = layer_norm(weights["norm"], x) if normalised else x
        return x + ACTIVATIONS[activation](entering @ weights["up"]) @ weights["down"]

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for each in weights:
            x = block(each, x)
        return mean_square(x)

    layer = {"up": array(width, hidden, dtype=dtype), "down": array(hidden, width, dtype=dtype)}
    if normalised:
        layer["norm"] = norm_weights(width, dtype)
    return descent_step(loss, [layer] * layers, array(rows, width, dtype=dtype))


def biased_mlp(
    *, width: int = 1024, layers: int = 12, rows: int = 32768, activation: str = "tanh", dtype: str = "float32",
    wrap: Any = as_written,
) -> Step:  # fmt: skip
    """A product and an activation beside a residual connection; the next product reads their sum with a bias."""

    @wrap
    def block(weights: Any, x: jax.Array) -> jax.Array:
        return x + ACTIVATIONS[activation](x @ weights["w"]) + weights["b"]

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for each in weights:
            x = block(each, x)
        return mean_square(x)

    return descent_step(loss, [dense_weights(width, width, dtype)] * layers, array(rows, width, dtype=dtype))


def dropout_mlp(
    *, width: int = 2048, layers: int = 12, rows: int = 32768, rate: float = 0.1, dtype: str = "float32",
    wrap: Any = as_written,
) -> Step:  # fmt: skip
    """Dropout after every activation, each block with a key of its own."""

    @wrap
    def block(weights: Any, x: jax.Array, key: Any) -> jax.Array:
        return dropout(key, jax.nn.relu(dense(weights, x)), rate)

    def loss(weights: Any, x: jax.Array, key: Any) -> jax.Array:
        for i, each in enumerate(weights):
            x = block(each, x, jax.random.fold_in(key, i))
        return mean_square(x)

    weights = [dense_weights(width, width, dtype)] * layers
    return training_step(loss, weights, array(rows, width, dtype=dtype), random_key())


def normalised_mlp(
    *, width: int = 2048, layers: int = 10, rows: int = 32768, activation: str = "relu", dtype: str = "float32",
    wrap: Any = as_written,
) -> Step:  # fmt: skip
    """Batch normalisation between product and activation."""

    @wrap
    def block(weights: Any, x: jax.Array) -> jax.Array:
        return ACTIVATIONS[activation](batch_norm(weights["norm"], dense(weights["dense"], x)))

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for each in weights:
            x = block(each, x)
        return mean_square(x)

    layer = {"dense": dense_weights(width, width, dtype), "norm": norm_weights(width)}
    return training_step(loss, [layer] * layers, array(rows, width, dtype=dtype))


def mixer(
    *, width: int = 512, tokens: int = 256, layers: int = 8, batch: int = 64, classes: int = 1000,
    dtype: str = "bfloat16", wrap: Any = as_written,
) -> Step:  # fmt: skip
    """MLP-Mixer: one perceptron over tokens, one over channels."""

    @wrap
    def block(weights: Any, x: jax.Array) -> jax.Array:
        mixed = mlp(weights["tokens"], layer_norm(weights["norm_1"], x).swapaxes(1, 2), jax.nn.gelu)
        x = x + mixed.swapaxes(1, 2)
        return x + mlp(weights["channels"], layer_norm(weights["norm_2"], x), jax.nn.gelu)

    def loss(weights: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        x = dense(weights["patches"], x)
        for each in weights["layers"]:
            x = block(each, x)
        return cross_entropy(dense(weights["head"], x.mean(1)), labels)

    layer = {
        "norm_1": norm_weights(width, dtype),
        "tokens": mlp_weights((tokens, 2 * tokens, tokens), dtype),
        "norm_2": norm_weights(width, dtype),
        "channels": mlp_weights((width, 4 * width, width), dtype),
    }
    weights = {
        "patches": dense_weights(768, width, dtype),
        "layers": [layer] * layers,
        "head": dense_weights(width, classes, dtype),
    }
    return training_step(loss, weights, array(batch, tokens, 768, dtype=dtype), integers(batch))


SMALL = {"width": 16, "layers": 3, "rows": 8}
WIDTHS = {"width": (1024, 1536, 2048, 3072), "rows": (32768, 65536), "layers": (8, 12, 20)}
DTYPES = {"dtype": ("float32", "bfloat16")}

NAMED = {
    "readme-tanh": Recipe(family="mlp", build=plain_mlp, small=SMALL),
    "tanh-14": Recipe(family="mlp", build=partial(plain_mlp, layers=14, rows=32768), small=SMALL),
    "residual-gelu-12": Recipe(family="mlp", build=residual_mlp, small={**SMALL, "hidden": 32}),
}

RECIPES = {
    "plain-mlp": Recipe(
        family="mlp",
        build=plain_mlp,
        small=SMALL,
        choices={**WIDTHS, **DTYPES, "activation": tuple(ACTIVATIONS)},
        draws=2,
    ),
    "residual-mlp": Recipe(
        family="mlp",
        build=residual_mlp,
        small={**SMALL, "hidden": 32},
        choices={
            "width": (512, 1024, 1536),
            "layers": (8, 12, 20),
            "rows": (8192, 16384, 32768),
            "activation": ("gelu", "silu", "tanh"),
            "normalised": (False, True),
            **DTYPES,
        },
        draws=2,
    ),
    "biased-mlp": Recipe(
        family="bias behind a block",
        build=biased_mlp,
        small=SMALL,
        choices={
            "width": (512, 1024, 2048),
            "layers": (6, 8, 12),
            "rows": (16384, 32768),
            "activation": tuple(ACTIVATIONS),
            **DTYPES,
        },
        draws=2,
    ),
    "dropout-mlp": Recipe(
        family="dropout",
        build=dropout_mlp,
        small=SMALL,
        choices={"width": (1024, 2048), "layers": (8, 12, 16), "rate": (0.1, 0.5), **DTYPES},
        draws=2,
    ),
    "batch-norm-mlp": Recipe(
        family="batch norm",
        build=normalised_mlp,
        small=SMALL,
        choices={"width": (1024, 2048), "layers": (8, 12), "activation": ("relu", "silu"), **DTYPES},
        draws=2,
    ),
    "mixer": Recipe(
        family="mixer",
        build=mixer,
        small={"width": 16, "tokens": 8, "layers": 2, "batch": 2, "classes": 5},
        choices={"width": (384, 512, 768), "layers": (6, 8, 12), "batch": (32, 64, 128), **DTYPES},
    ),
}
