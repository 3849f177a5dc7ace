"""Attention: blocks with dropout, decoders scanned over their layers, and experts."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.strangers.layers import (
    attention,
    attention_weights,
    cross_entropy,
    dense,
    dense_weights,
    dropout,
    layer_norm,
    mean_square,
    mlp,
    mlp_weights,
    norm_weights,
    transformer_block,
    transformer_weights,
)
from benchmarks.strangers.training import (
    Recipe,
    array,
    as_written,
    gradient_step,
    integers,
    random_key,
    stacked,
    training_step,
)
from jaxckpt import Step


def bare_attention(
    *, layers: int = 10, batch: int = 8, length: int = 128, heads: int = 16, size: int = 32, wrap: Any = as_written
) -> Step:
    """MindSpore's example of recomputation: attention without weights, a mask, dropout of its scores."""

    @wrap
    def block(x: jax.Array, mask: jax.Array, key: Any) -> jax.Array:
        values = jnp.transpose(x, (0, 2, 1, 3))
        scores = jnp.matmul(values / 2.37891, jnp.transpose(x, (0, 2, 3, 1)) / 2.37891)
        scores = (1.0 - jnp.expand_dims(mask, 1)) * -0.0001 + scores
        shares = dropout(key, jax.nn.softmax(scores, -1), 0.1)
        return jnp.transpose(jnp.matmul(shares, values), (0, 2, 1, 3))

    def loss(x: jax.Array, masks: list[jax.Array], key: Any) -> jax.Array:
        for i, mask in enumerate(masks):
            x = block(x, mask, jax.random.fold_in(key, i))
        return x.sum()

    args = array(batch, length, heads, size), [array(batch, length, length)] * layers, random_key()
    return Step(jax.grad(loss), args)


def dropout_encoder(
    *, width: int = 768, heads: int = 12, layers: int = 12, batch: int = 8, length: int = 512, classes: int = 2,
    rate: float = 0.1, dtype: str = "bfloat16", wrap: Any = as_written,
) -> Step:  # fmt: skip
    """Dropout of scores, of attention's result and of the perceptron's."""

    @wrap
    def block(weights: Any, x: jax.Array, key: Any) -> jax.Array:
        keys = jax.random.split(key, 3)
        mixed = attention(weights["attention"], layer_norm(weights["norm_1"], x), heads=heads, key=keys[0], rate=rate)
        x = x + dropout(keys[1], mixed, rate)
        fed = mlp(weights["mlp"], layer_norm(weights["norm_2"], x), jax.nn.gelu)
        return x + dropout(keys[2], fed, rate)

    def loss(weights: Any, x: jax.Array, labels: jax.Array, key: Any) -> jax.Array:
        for i, each in enumerate(weights["layers"]):
            x = block(each, x, jax.random.fold_in(key, i))
        return cross_entropy(dense(weights["head"], x[:, 0]), labels)

    weights = {
        "layers": [transformer_weights(width, 4 * width, dtype)] * layers,
        "head": dense_weights(width, classes, dtype),
    }
    return training_step(loss, weights, array(batch, length, width, dtype=dtype), integers(batch), random_key())


def scanned_decoder(
    *, width: int = 1536, heads: int = 16, layers: int = 16, batch: int = 8, length: int = 1024,
    vocabulary: int = 32000, dtype: str = "bfloat16", wrap: Any = as_written,
) -> Step:  # fmt: skip
    """A decoder whose layers are one `lax.scan`, with tied embeddings."""

    @partial(wrap, in_loop=True)
    def block(weights: Any, x: jax.Array) -> jax.Array:
        return transformer_block(weights, x, heads=heads, causal=True)

    def loss(weights: Any, tokens: jax.Array) -> jax.Array:
        x = weights["embedding"][tokens[:, :-1]]
        x, _ = jax.lax.scan(lambda x, each: (block(each, x), None), x, weights["layers"])
        return cross_entropy(layer_norm(weights["norm"], x) @ weights["embedding"].T, tokens[:, 1:])

    weights = {
        "embedding": array(vocabulary, width, dtype=dtype),
        "layers": stacked(transformer_weights(width, 4 * width, dtype), layers),
        "norm": norm_weights(width, dtype),
    }
    return training_step(loss, weights, integers(batch, length + 1))


def scanned_parallel_decoder(
    *, width: int = 1024, heads: int = 8, layers: int = 12, batch: int = 8, length: int = 1024, dtype: str = "bfloat16",
    wrap: Any = as_written,
) -> Step:  # fmt: skip
    """A scan over layers whose attention and gated perceptron read the same input; gradients alone."""

    @partial(wrap, in_loop=True)
    def block(weights: Any, x: jax.Array) -> jax.Array:
        entering = layer_norm(weights["norm"], x)
        gate, up = jnp.split(entering @ weights["up"], 2, axis=-1)
        mixed = attention(weights["attention"], entering, heads=heads, causal=True)
        return x + mixed + (jax.nn.silu(gate) * up) @ weights["down"]

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        return mean_square(jax.lax.scan(lambda x, each: (block(each, x), None), x, weights)[0])

    layer = {
        "norm": norm_weights(width, dtype),
        "attention": attention_weights(width, dtype),
        "up": array(width, 6 * width, dtype=dtype),
        "down": array(3 * width, width, dtype=dtype),
    }
    return gradient_step(loss, stacked(layer, layers), array(batch, length, width, dtype=dtype))


def switched_experts(
    *, width: int = 1024, experts: int = 8, layers: int = 6, groups: int = 16, tokens: int = 1024,
    dtype: str = "bfloat16", wrap: Any = as_written,
) -> Step:  # fmt: skip
    """Each token goes to one expert, in places found by a running count."""
    places = 5 * tokens // (4 * experts)

    @wrap
    def block(weights: Any, x: jax.Array) -> jax.Array:
        entering = layer_norm(weights["norm"], x)
        odds = jax.nn.softmax((entering @ weights["router"]).astype(jnp.float32))
        chosen = jax.nn.one_hot(odds.argmax(-1), experts)
        place = (jnp.cumsum(chosen, axis=1) * chosen - 1).astype(jnp.int32)
        dispatch = jax.nn.one_hot(place, places, dtype=x.dtype)
        sent = jnp.einsum("gtw,gtep->egpw", entering, dispatch)
        hidden = jax.nn.gelu(jnp.einsum("egpw,ewh->egph", sent, weights["up"]))
        results = jnp.einsum("egph,ehw->egpw", hidden, weights["down"])
        combine = dispatch * odds[..., None].astype(x.dtype)
        return x + jnp.einsum("egpw,gtep->gtw", results, combine)

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for each in weights:
            x = block(each, x)
        return mean_square(x)

    layer = {
        "norm": norm_weights(width, dtype),
        "router": array(width, experts, dtype=dtype),
        "up": array(experts, width, 4 * width, dtype=dtype),
        "down": array(experts, 4 * width, width, dtype=dtype),
    }
    return training_step(loss, [layer] * layers, array(groups, tokens, width, dtype=dtype))


def soft_experts(
    *, width: int = 512, experts: int = 8, layers: int = 6, rows: int = 16384, dtype: str = "float32",
    wrap: Any = as_written,
) -> Step:  # fmt: skip
    """Every expert runs on every row, and a gate weighs their results."""

    @wrap
    def block(weights: Any, x: jax.Array) -> jax.Array:
        gates = jax.nn.softmax(x @ weights["router"])
        results = jax.vmap(mlp, in_axes=(0, None))(weights["experts"], x)
        return x + jnp.einsum("re,erw->rw", gates, results)

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for each in weights:
            x = block(each, x)
        return mean_square(x)

    layer = {
        "router": array(width, experts, dtype=dtype),
        "experts": stacked(mlp_weights((width, 2 * width, width), dtype), experts),
    }
    return training_step(loss, [layer] * layers, array(rows, width, dtype=dtype))


SMALL = {"width": 16, "heads": 2, "layers": 2, "batch": 2, "length": 8}
BATCHES = {"batch": (4, 8), "length": (512, 1024)}
DTYPES = {"dtype": ("float32", "bfloat16")}

NAMED = {
    "mindspore-attention": Recipe(
        family="dropout",
        build=bare_attention,
        small={"layers": 2, "batch": 2, "length": 8, "heads": 2, "size": 4},
    ),
    "scanned-decoder-16": Recipe(family="scanned decoder", build=scanned_decoder, small={**SMALL, "vocabulary": 50}),
}

RECIPES = {
    "dropout-encoder": Recipe(
        family="dropout",
        build=dropout_encoder,
        small=SMALL,
        choices={"layers": (6, 12), "rate": (0.1, 0.3), **BATCHES, **DTYPES},
        draws=2,
    ),
    "scanned-decoder": Recipe(
        family="scanned decoder",
        build=scanned_decoder,
        small={**SMALL, "vocabulary": 50},
        choices={"width": (512, 1024), "heads": (8, 16), "layers": (8, 12, 20), **BATCHES},
        draws=2,
    ),
    "scanned-parallel-decoder": Recipe(
        family="scanned decoder",
        build=scanned_parallel_decoder,
        small=SMALL,
        choices={"width": (768, 1024, 1536), "layers": (8, 12), "batch": (4, 8), **DTYPES},
    ),
    "switched-experts": Recipe(
        family="mixture of experts",
        build=switched_experts,
        small={"width": 16, "experts": 4, "layers": 2, "groups": 2, "tokens": 16},
        choices={"width": (512, 1024), "experts": (8, 16), "layers": (4, 6), **DTYPES},
        draws=2,
    ),
    "soft-experts": Recipe(
        family="mixture of experts",
        build=soft_experts,
        small={"width": 16, "experts": 4, "layers": 2, "rows": 8},
        choices={"width": (256, 512), "experts": (4, 8), "layers": (4, 6, 8), **DTYPES},
    ),
}
