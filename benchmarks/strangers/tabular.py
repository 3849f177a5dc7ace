"""Rows of tables: a token for each column under attention, and products of features with each other."""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.strangers.layers import dense, dense_weights, mlp, mlp_weights, transformer_block, transformer_weights
from benchmarks.strangers.training import Recipe, array, as_written, integers, training_step
from jaxckpt import Step


def logistic(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.mean(jax.nn.softplus(logits) - labels * logits)


def column_attention(
    *, width: int = 192, heads: int = 8, layers: int = 4, rows: int = 4096, columns: int = 32, wrap: Any = as_written
) -> Step:
    """Every number is a token (Gorishniy and others 2021)."""

    @wrap
    def block(weights: Any, x: jax.Array) -> jax.Array:
        return transformer_block(weights, x, heads=heads)

    def loss(weights: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        x = x[..., None] * weights["scale"] + weights["shift"]
        for each in weights["layers"]:
            x = block(each, x)
        return logistic(dense(weights["head"], x.mean(1))[:, 0], labels)

    weights = {
        "scale": array(columns, width),
        "shift": array(columns, width),
        "layers": [transformer_weights(width, 2 * width)] * layers,
        "head": dense_weights(width, 1),
    }
    return training_step(loss, weights, array(rows, columns), array(rows))


def crossed_features(
    *, size: int = 32, fields: int = 26, words: int = 20_000, layers: int = 6, rows: int = 32768,
    dtype: str = "float32", wrap: Any = as_written,
) -> Step:  # fmt: skip
    """Embeddings of categories, and layers that multiply them by the input (Wang and others 2021)."""

    @wrap
    def block(weights: Any, first: jax.Array, x: jax.Array) -> jax.Array:
        return first * dense(weights, x) + x

    def loss(weights: Any, categories: jax.Array, labels: jax.Array) -> jax.Array:
        embedded = jax.vmap(lambda table, index: table[index], in_axes=(0, 1), out_axes=1)
        x = first = embedded(weights["tables"], categories).reshape(rows, -1)
        for each in weights["layers"]:
            x = block(each, first, x)
        return logistic(mlp(weights["head"], x, jax.nn.relu)[:, 0], labels)

    width = fields * size
    weights = {
        "tables": array(fields, words, size, dtype=dtype),
        "layers": [dense_weights(width, width, dtype)] * layers,
        "head": mlp_weights((width, 512, 256, 1), dtype),
    }
    return training_step(loss, weights, integers(rows, fields), array(rows, dtype=dtype))


RECIPES = {
    "column-attention": Recipe(
        family="tabular",
        build=column_attention,
        small={"width": 8, "heads": 2, "layers": 2, "rows": 4, "columns": 3},
        choices={"width": (128, 192), "layers": (3, 4, 6), "columns": (24, 48)},
    ),
    "crossed-features": Recipe(
        family="tabular",
        build=crossed_features,
        small={"size": 2, "fields": 3, "words": 5, "layers": 2, "rows": 4},
        choices={"size": (16, 32), "layers": (4, 6, 8), "rows": (32768, 65536), "dtype": ("float32", "bfloat16")},
    ),
}
