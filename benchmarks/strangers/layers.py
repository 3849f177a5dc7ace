"""Layers in plain JAX: for each a description of its weights, and a function of weights and inputs."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.strangers.training import array

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
}
_SPATIAL = "XYZ"


def dense_weights(inputs: int, outputs: int, dtype: Any = jnp.float32) -> dict[str, Any]:
    return {"w": array(inputs, outputs, dtype=dtype), "b": array(outputs, dtype=dtype)}


def dense(weights: Any, x: jax.Array) -> jax.Array:
    return x @ weights["w"] + weights["b"]


def mlp_weights(widths: Sequence[int], dtype: Any = jnp.float32) -> list[Any]:
    return [dense_weights(*pair, dtype) for pair in pairwise(widths)]


def mlp(weights: Sequence[Any], x: jax.Array, activation: Callable[[jax.Array], jax.Array] = jax.nn.silu) -> jax.Array:
    """Dense layers with an activation between them."""
    for layer in weights[:-1]:
        x = activation(dense(layer, x))
    return dense(weights[-1], x)


def norm_weights(width: int, dtype: Any = jnp.float32) -> dict[str, Any]:
    return {"scale": array(width, dtype=dtype), "bias": array(width, dtype=dtype)}


def layer_norm(weights: Any, x: jax.Array) -> jax.Array:
    """Normalised over the last dimension, in float32."""
    return _normalised(weights, x, (-1,))


def batch_norm(weights: Any, x: jax.Array) -> jax.Array:
    """Normalised by the statistics of the batch, over all dimensions but the last, in float32."""
    return _normalised(weights, x, tuple(range(x.ndim - 1)))


def _normalised(weights: Any, x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    wide = x.astype(jnp.float32)
    mean, variance = wide.mean(axes, keepdims=True), wide.var(axes, keepdims=True)
    scaled = (wide - mean) * jax.lax.rsqrt(variance + 1e-5) * weights["scale"] + weights["bias"]
    return scaled.astype(x.dtype)


def dropout(key: Any, x: jax.Array, rate: float) -> jax.Array:
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0).astype(x.dtype)


def conv_weights(inputs: int, outputs: int, *, size: int = 3, dimensions: int = 2, dtype: Any = jnp.float32) -> Any:
    return array(*(size,) * dimensions, inputs, outputs, dtype=dtype)


def conv(weights: jax.Array, x: jax.Array, *, stride: int = 1) -> jax.Array:
    """A convolution with channels last, in as many spatial dimensions as the weights have."""
    spatial = _SPATIAL[: weights.ndim - 2]
    strides = (stride,) * len(spatial)
    return jax.lax.conv_general_dilated(
        x, weights, strides, "SAME", dimension_numbers=(f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")
    )


def enlarged(x: jax.Array) -> jax.Array:
    """Every spatial dimension doubled, by its nearest neighbour."""
    for axis in range(1, x.ndim - 1):
        x = jnp.repeat(x, 2, axis)
    return x


def attention_weights(width: int, dtype: Any = jnp.float32) -> dict[str, Any]:
    return {"qkv": dense_weights(width, 3 * width, dtype), "out": dense_weights(width, width, dtype)}


def attention(
    weights: Any, x: jax.Array, *, heads: int, causal: bool = False, key: Any = None, rate: float = 0.1
) -> jax.Array:
    """Self-attention with its scores written out; with a key they are dropped."""
    rows, length, width = x.shape
    q, k, v = jnp.split(dense(weights["qkv"], x).reshape(rows, length, heads, -1), 3, axis=-1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * (width // heads) ** -0.5
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e30)
    shares = jax.nn.softmax(scores).astype(x.dtype)
    if key is not None:
        shares = dropout(key, shares, rate)
    return dense(weights["out"], jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(rows, length, width))


def transformer_weights(width: int, hidden: int, dtype: Any = jnp.float32) -> dict[str, Any]:
    return {
        "norm_1": norm_weights(width, dtype),
        "attention": attention_weights(width, dtype),
        "norm_2": norm_weights(width, dtype),
        "mlp": mlp_weights((width, hidden, width), dtype),
    }


def transformer_block(weights: Any, x: jax.Array, *, heads: int, causal: bool = False) -> jax.Array:
    x = x + attention(weights["attention"], layer_norm(weights["norm_1"], x), heads=heads, causal=causal)
    return x + mlp(weights["mlp"], layer_norm(weights["norm_2"], x), jax.nn.gelu)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean negative log-likelihood of integer labels."""
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits.astype(jnp.float32)), labels[..., None], axis=-1)
    return -picked.mean()


def mean_square(x: jax.Array) -> jax.Array:
    return jnp.mean(jnp.square(x.astype(jnp.float32)))
