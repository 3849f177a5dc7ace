"""Loops over time: recurrent cells by `lax.scan`, state spaces by scans and by chunks, and labels without times."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.strangers.layers import (
    cross_entropy,
    dense,
    dense_weights,
    layer_norm,
    mean_square,
    mlp,
    mlp_weights,
    norm_weights,
    transformer_block,
    transformer_weights,
)
from benchmarks.strangers.training import Recipe, array, as_written, gradient_step, integers, training_step
from jaxckpt import Step


def lstm_cell(weights: Any, carry: Any, x: jax.Array) -> Any:
    hidden, memory = carry
    entry, forget, new, out = jnp.split(x @ weights["x"] + hidden @ weights["h"] + weights["b"], 4, axis=-1)
    memory = jax.nn.sigmoid(forget + 1.0) * memory + jax.nn.sigmoid(entry) * jnp.tanh(new)
    return jax.nn.sigmoid(out) * jnp.tanh(memory), memory


def gated_weights(width: int, gates: int, dtype: Any) -> dict[str, Any]:
    return {
        "x": array(width, gates * width, dtype=dtype),
        "h": array(width, gates * width, dtype=dtype),
        "b": array(gates * width, dtype=dtype),
    }


def lstm_language_model(
    *, width: int = 1024, layers: int = 2, batch: int = 64, length: int = 512, vocabulary: int = 10_000,
    dtype: str = "float32", wrap: Any = as_written,
) -> Step:  # fmt: skip
    """Layers of LSTM cells, one scan each, that predict the next word."""
    cell = wrap(lstm_cell, in_loop=True)

    def layer(weights: Any, x: jax.Array) -> jax.Array:
        def body(carry: Any, x: jax.Array) -> Any:
            carry = cell(weights, carry, x)
            return carry, carry[0]

        zeros = jnp.zeros(x.shape[1:], x.dtype)
        return jax.lax.scan(body, (zeros, zeros), x)[1]

    def loss(weights: Any, tokens: jax.Array) -> jax.Array:
        x = weights["embedding"][tokens[:-1]]
        for each in weights["layers"]:
            x = layer(each, x)
        return cross_entropy(dense(weights["head"], x), tokens[1:])

    weights = {
        "embedding": array(vocabulary, width, dtype=dtype),
        "layers": [gated_weights(width, 4, dtype)] * layers,
        "head": dense_weights(width, vocabulary, dtype),
    }
    return training_step(loss, weights, integers(length + 1, batch))


def gru(
    *, width: int = 512, layers: int = 2, batch: int = 256, length: int = 512, dtype: str = "float32",
    wrap: Any = as_written,
) -> Step:  # fmt: skip
    """Cells of all layers in one scan, with layer normalisation."""

    @partial(wrap, in_loop=True)
    def cell(weights: Any, hidden: jax.Array, x: jax.Array) -> jax.Array:
        reset, update, new = jnp.split(layer_norm(weights["norm"], x @ weights["x"] + weights["b"]), 3, axis=-1)
        by_reset, by_update, by_new = jnp.split(hidden @ weights["h"], 3, axis=-1)
        update = jax.nn.sigmoid(update + by_update)
        return update * hidden + (1 - update) * jnp.tanh(new + jax.nn.sigmoid(reset + by_reset) * by_new)

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        def body(states: Any, x: jax.Array) -> Any:
            after = []
            for each, hidden in zip(weights, states, strict=True):
                x = cell(each, hidden, x)
                after.append(x)
            return tuple(after), x

        zeros = jnp.zeros(x.shape[1:], x.dtype)
        return mean_square(jax.lax.scan(body, (zeros,) * layers, x)[1])

    layer = gated_weights(width, 3, dtype) | {"norm": norm_weights(3 * width, dtype)}
    return gradient_step(loss, [layer] * layers, array(length, batch, width, dtype=dtype))


def diagonal_states(
    *, width: int = 512, layers: int = 6, batch: int = 16, length: int = 2048, wrap: Any = as_written
) -> Step:
    """A diagonal linear recurrence, by `lax.associative_scan`, and a gated perceptron (Orvieto and others 2023)."""

    def joined(first: Any, second: Any) -> Any:
        return first[0] * second[0], first[1] * second[0] + second[1]

    @wrap
    def block(weights: Any, x: jax.Array) -> jax.Array:
        entering = layer_norm(weights["norm"], x)
        decay = jax.nn.sigmoid(dense(weights["decay"], entering))
        _, states = jax.lax.associative_scan(joined, (decay, (1 - decay) * dense(weights["in"], entering)), axis=1)
        return x + dense(weights["out"], states * jax.nn.silu(dense(weights["gate"], entering)))

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for each in weights:
            x = block(each, x)
        return mean_square(x)

    layer = {"norm": norm_weights(width)} | {
        name: dense_weights(width, width) for name in ("decay", "in", "out", "gate")
    }
    return training_step(loss, [layer] * layers, array(batch, length, width))


def selective_states(
    *, width: int = 512, size: int = 16, layers: int = 2, batch: int = 4, length: int = 512, wrap: Any = as_written
) -> Step:
    """States whose transitions depend on the input, by `lax.scan` over time (Gu and Dao 2023)."""

    @partial(wrap, in_loop=True)
    def moment(rates: jax.Array, state: jax.Array, each: Any) -> Any:
        x, step, into, out = each
        state = jnp.exp(step[..., None] * rates) * state + (step * x)[..., None] * into[:, None, :]
        return state, jnp.einsum("bwn,bn->bw", state, out)

    def layer(weights: Any, x: jax.Array) -> jax.Array:
        entering, gate = jnp.split(dense(weights["entry"], layer_norm(weights["norm"], x)), 2, axis=-1)
        into, out = jnp.split(entering @ weights["into_out"], 2, axis=-1)
        steps = jax.nn.softplus(dense(weights["steps"], entering))
        rates = -jnp.exp(weights["rates"])
        zeros = jnp.zeros((x.shape[1], width, size), x.dtype)
        _, results = jax.lax.scan(partial(moment, rates), zeros, (entering, steps, into, out))
        return x + dense(weights["out"], results * jax.nn.silu(gate))

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for each in weights:
            x = layer(each, x)
        return mean_square(x)

    weights = {
        "norm": norm_weights(width),
        "entry": dense_weights(width, 2 * width),
        "into_out": array(width, 2 * size),
        "steps": dense_weights(width, width),
        "rates": array(width, size),
        "out": dense_weights(width, width),
    }
    return training_step(loss, [weights] * layers, array(length, batch, width))


def linear_attention(
    *, width: int = 1024, heads: int = 16, chunk: int = 128, layers: int = 6, batch: int = 8, length: int = 2048,
    dtype: str = "bfloat16", wrap: Any = as_written,
) -> Step:  # fmt: skip
    """Attention without a softmax: within chunks by scores, between chunks by a state that a scan carries."""

    @wrap
    def block(weights: Any, x: jax.Array) -> jax.Array:
        projected = dense(weights["qkv"], layer_norm(weights["norm_1"], x))
        parts = projected.reshape(batch, length // chunk, chunk, 3, heads, width // heads)
        q, k, v = jnp.moveaxis(parts, (3, 1, 4), (0, 1, 3))
        inside = jnp.tril(jnp.ones((chunk, chunk), x.dtype))

        def body(state: jax.Array, each: Any) -> Any:
            q, k, v = each
            scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * inside
            result = jnp.einsum("bhqk,bhkd->bhqd", scores, v) + jnp.einsum("bhqd,bhde->bhqe", q, state)
            return state + jnp.einsum("bhkd,bhke->bhde", k, v), result

        zeros = jnp.zeros((batch, heads, width // heads, width // heads), x.dtype)
        _, results = jax.lax.scan(body, zeros, (q, k, v))
        x = x + dense(weights["out"], jnp.moveaxis(results, (0, 2), (1, 3)).reshape(x.shape))
        return x + mlp(weights["mlp"], layer_norm(weights["norm_2"], x), jax.nn.gelu)

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for each in weights:
            x = block(each, x)
        return mean_square(x)

    layer = {
        "norm_1": norm_weights(width, dtype),
        "qkv": dense_weights(width, 3 * width, dtype),
        "out": dense_weights(width, width, dtype),
        "norm_2": norm_weights(width, dtype),
        "mlp": mlp_weights((width, 4 * width, width), dtype),
    }
    return training_step(loss, [layer] * layers, array(batch, length, width, dtype=dtype))


def speech_lstm(
    *, width: int = 512, layers: int = 3, batch: int = 32, length: int = 400, labels: int = 60, classes: int = 100,
    wrap: Any = as_written,
) -> Step:  # fmt: skip
    """Recurrent layers under connectionist temporal classification (Graves and others 2006)."""
    cell = wrap(lstm_cell, in_loop=True)

    def loss(weights: Any, x: jax.Array, known: jax.Array) -> jax.Array:
        for each in weights["layers"]:
            zeros = jnp.zeros(x.shape[1:], x.dtype)
            x = jax.lax.scan(lambda carry, x, w=each: (cell(w, carry, x),) * 2, (zeros, zeros), x)[1][0]
        return ctc(dense(weights["head"], x.swapaxes(0, 1)), known)

    weights = {"layers": [gated_weights(width, 4, "float32")] * layers, "head": dense_weights(width, classes)}
    return training_step(loss, weights, array(length, batch, width), integers(batch, labels))


def speech_transformer(
    *, width: int = 256, heads: int = 4, layers: int = 8, batch: int = 32, length: int = 512, labels: int = 100,
    classes: int = 500, wrap: Any = as_written,
) -> Step:  # fmt: skip
    """Attention blocks under connectionist temporal classification."""

    @wrap
    def block(weights: Any, x: jax.Array) -> jax.Array:
        return transformer_block(weights, x, heads=heads)

    def loss(weights: Any, x: jax.Array, known: jax.Array) -> jax.Array:
        for each in weights["layers"]:
            x = block(each, x)
        return ctc(dense(weights["head"], x), known)

    layer = transformer_weights(width, 4 * width)
    weights = {"layers": [layer] * layers, "head": dense_weights(width, classes)}
    return training_step(loss, weights, array(batch, length, width), integers(batch, labels))


def ctc(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The loss without padding: every frame and every label counts."""
    return optax.ctc_loss(logits, jnp.zeros(logits.shape[:2]), labels, jnp.zeros(labels.shape)).mean()


SMALL = {"width": 8, "layers": 2, "batch": 2, "length": 6}
SPEECH_SMALL = {**SMALL, "labels": 2, "classes": 5}

NAMED = {
    "lstm-language-model": Recipe(family="recurrent", build=lstm_language_model, small={**SMALL, "vocabulary": 20}),
}

RECIPES = {
    "lstm": Recipe(
        family="recurrent",
        build=lstm_language_model,
        small={**SMALL, "vocabulary": 20},
        choices={"width": (512, 1024), "batch": (32, 64), "length": (256, 512), "layers": (1, 3)},
    ),
    "gru": Recipe(
        family="recurrent",
        build=gru,
        small=SMALL,
        choices={"width": (256, 512), "batch": (128, 256), "layers": (2, 3), "dtype": ("float32", "bfloat16")},
        draws=2,
    ),
    "diagonal-states": Recipe(
        family="state space",
        build=diagonal_states,
        small=SMALL,
        choices={"width": (256, 512), "length": (1024, 2048), "layers": (4, 6)},
    ),
    "selective-states": Recipe(
        family="state space",
        build=selective_states,
        small={**SMALL, "size": 4},
        choices={"width": (512, 1024), "layers": (2, 4)},
    ),
    "linear-attention": Recipe(
        family="state space",
        build=linear_attention,
        small={**SMALL, "heads": 2, "chunk": 3},
        choices={"width": (512, 1024), "layers": (4, 6), "dtype": ("float32", "bfloat16")},
        draws=2,
    ),
    "speech-lstm": Recipe(
        family="ctc",
        build=speech_lstm,
        small=SPEECH_SMALL,
        choices={"width": (512, 768), "layers": (3, 4), "batch": (32, 64)},
    ),
    "speech-transformer": Recipe(
        family="ctc",
        build=speech_transformer,
        small={**SPEECH_SMALL, "heads": 2},
        choices={"layers": (6, 8, 12), "batch": (16, 32)},
    ),
}
