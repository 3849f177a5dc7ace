"""Models that generate: diffusion by transformers and by convolutions, invertible flows, critics with a penalty."""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.strangers.layers import (
    attention,
    attention_weights,
    conv,
    conv_weights,
    dense,
    dense_weights,
    layer_norm,
    mean_square,
    mlp,
    mlp_weights,
    norm_weights,
)
from benchmarks.strangers.training import Recipe, array, as_written, random_key, training_step
from jaxckpt import Step


def noised(x: jax.Array, key: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Samples with noise of a random level each; noise and levels are the other two results."""
    for_levels, for_noise = jax.random.split(key)
    levels = jax.random.uniform(for_levels, (x.shape[0],))
    noise = jax.random.normal(for_noise, x.shape, x.dtype)
    share = jnp.cos(levels * jnp.pi / 2).astype(x.dtype).reshape(-1, *(1,) * (x.ndim - 1))
    return share * x + jnp.sqrt(1 - share**2) * noise, noise, levels


def level_features(levels: jax.Array, width: int) -> jax.Array:
    angles = levels[:, None] * jnp.exp(jnp.linspace(0, 7, width // 2))
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def diffusion_transformer(
    *, width: int = 768, heads: int = 12, layers: int = 8, batch: int = 32, tokens: int = 256, dtype: str = "bfloat16",
    wrap: Any = as_written,
) -> Step:  # fmt: skip
    """Blocks whose normalisations are scaled and shifted by the noise level (Peebles and Xie 2023)."""

    @wrap
    def block(weights: Any, x: jax.Array, level: jax.Array) -> jax.Array:
        first, second, third, fourth, fifth, sixth = jnp.split(dense(weights["level"], level)[:, None], 6, axis=-1)
        entering = layer_norm(weights["norm_1"], x) * (1 + first) + second
        x = x + third * attention(weights["attention"], entering, heads=heads)
        entering = layer_norm(weights["norm_2"], x) * (1 + fourth) + fifth
        return x + sixth * mlp(weights["mlp"], entering, jax.nn.gelu)

    def loss(weights: Any, x: jax.Array, key: Any) -> jax.Array:
        x, noise, levels = noised(x, key)
        level = mlp(weights["levels"], level_features(levels, width).astype(x.dtype))
        x = dense(weights["entry"], x)
        for each in weights["layers"]:
            x = block(each, x, level)
        return mean_square(dense(weights["head"], x) - noise)

    layer = {
        "level": dense_weights(width, 6 * width, dtype),
        "norm_1": norm_weights(width, dtype),
        "attention": attention_weights(width, dtype),
        "norm_2": norm_weights(width, dtype),
        "mlp": mlp_weights((width, 4 * width, width), dtype),
    }
    weights = {
        "levels": mlp_weights((width, width, width), dtype),
        "entry": dense_weights(16, width, dtype),
        "layers": [layer] * layers,
        "head": dense_weights(width, 16, dtype),
    }
    return training_step(loss, weights, array(batch, tokens, 16, dtype=dtype), random_key())


def diffusion_convolutions(
    *, width: int = 128, layers: int = 8, batch: int = 64, size: int = 32, dtype: str = "float32",
    wrap: Any = as_written,
) -> Step:  # fmt: skip
    """Residual blocks of two convolutions, the noise level added between them (Ho and others 2020)."""

    @wrap
    def block(weights: Any, x: jax.Array, level: jax.Array) -> jax.Array:
        hidden = conv(weights["first"], jax.nn.silu(layer_norm(weights["norm_1"], x)))
        hidden = hidden + dense(weights["level"], level)[:, None, None]
        return x + conv(weights["second"], jax.nn.silu(layer_norm(weights["norm_2"], hidden)))

    def loss(weights: Any, x: jax.Array, key: Any) -> jax.Array:
        x, noise, levels = noised(x, key)
        level = mlp(weights["levels"], level_features(levels, width).astype(x.dtype))
        x = conv(weights["entry"], x)
        for each in weights["layers"]:
            x = block(each, x, level)
        return mean_square(conv(weights["head"], x) - noise)

    layer = {
        "norm_1": norm_weights(width, dtype),
        "first": conv_weights(width, width, dtype=dtype),
        "level": dense_weights(width, width, dtype),
        "norm_2": norm_weights(width, dtype),
        "second": conv_weights(width, width, dtype=dtype),
    }
    weights = {
        "levels": mlp_weights((width, width, width), dtype),
        "entry": conv_weights(3, width, dtype=dtype),
        "layers": [layer] * layers,
        "head": conv_weights(width, 3, dtype=dtype),
    }
    return training_step(loss, weights, array(batch, size, size, 3, dtype=dtype), random_key())


def coupling_flow(
    *, size: int = 64, width: int = 1024, layers: int = 12, rows: int = 16384, wrap: Any = as_written
) -> Step:
    """Each half scales and shifts the other one; the loss is the exact likelihood (Dinh and others 2017)."""

    @wrap
    def block(weights: Any, x: jax.Array, density: jax.Array) -> tuple[jax.Array, jax.Array]:
        fixed, moved = jnp.split(x, 2, axis=-1)
        scale, shift = jnp.split(mlp(weights, fixed, jax.nn.relu), 2, axis=-1)
        scale = jnp.tanh(scale)
        return jnp.concatenate([moved * jnp.exp(scale) + shift, fixed], axis=-1), density + scale.sum(-1)

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        density = jnp.zeros(x.shape[:1])
        for each in weights:
            x, density = block(each, x, density)
        return jnp.mean(jnp.square(x).sum(-1) / 2 - density)

    layer = mlp_weights((size // 2, width, width, size))
    return training_step(loss, [layer] * layers, array(rows, size))


def penalised_critic(
    *, width: int = 64, layers: int = 4, batch: int = 128, size: int = 32, wrap: Any = as_written
) -> Step:
    """A critic whose slope is part of its loss (Gulrajani and others 2017): a gradient of a gradient."""

    @wrap
    def block(weights: Any, x: jax.Array) -> jax.Array:
        return x + conv(weights["second"], jax.nn.silu(conv(weights["first"], jax.nn.silu(x))))

    def score(weights: Any, x: jax.Array) -> jax.Array:
        x = conv(weights["entry"], x)
        for each in weights["layers"]:
            x = block(each, x)
        return dense(weights["head"], x.mean((1, 2))).sum()

    def loss(weights: Any, real: jax.Array, fake: jax.Array, shares: jax.Array) -> jax.Array:
        between = shares[:, None, None, None] * (real - fake) + fake
        slopes = jax.grad(score, argnums=1)(weights, between)
        penalty = jnp.mean(jnp.square(jnp.sqrt(jnp.square(slopes).sum((1, 2, 3)) + 1e-6) - 1))
        return (score(weights, fake) - score(weights, real)) / batch + 10 * penalty

    layer = {"first": conv_weights(width, width), "second": conv_weights(width, width)}
    weights = {
        "entry": conv_weights(3, width),
        "layers": [layer] * layers,
        "head": dense_weights(width, 1),
    }
    images = array(batch, size, size, 3)
    return training_step(loss, weights, images, images, array(batch))


RECIPES = {
    "diffusion-transformer": Recipe(
        family="diffusion",
        build=diffusion_transformer,
        small={"width": 16, "heads": 2, "layers": 2, "batch": 2, "tokens": 4},
        choices={"layers": (6, 8, 12), "batch": (16, 32, 64)},
        draws=2,
    ),
    "diffusion-convolutions": Recipe(
        family="diffusion",
        build=diffusion_convolutions,
        small={"width": 8, "layers": 2, "batch": 2, "size": 4},
        choices={"width": (64, 128), "layers": (6, 8, 10), "dtype": ("float32", "bfloat16")},
    ),
    "coupling-flow": Recipe(
        family="flow",
        build=coupling_flow,
        small={"size": 4, "width": 8, "layers": 2, "rows": 4},
        choices={"width": (512, 1024), "layers": (8, 12, 16), "rows": (16384, 32768)},
    ),
    "penalised-critic": Recipe(
        family="adversarial",
        build=penalised_critic,
        small={"width": 4, "layers": 2, "batch": 2, "size": 4},
        choices={"width": (64, 96), "layers": (3, 4, 6), "batch": (64, 128)},
    ),
}
