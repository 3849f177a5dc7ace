"""Threads about logits: what is large is not a residual of a layer."""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gallery.entry import Entry
from jaxckpt import Step


def _arguments(rows: int, words: int, width: int, dtype: Any) -> tuple[Any, ...]:
    weights, x = (jax.ShapeDtypeStruct((count, width), jnp.dtype(dtype)) for count in (words, rows))
    return (x, weights), jax.ShapeDtypeStruct((rows,), jnp.int32)


def _losses(x: jax.Array, weights: jax.Array, labels: jax.Array) -> jax.Array:
    logits = (x @ weights.T).astype(jnp.float32)
    return jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, labels[:, None], -1)[:, 0]


def head(*, rows: int = 8192, words: int = 131_072, width: int = 4096, chunk: int = 4096) -> Step:  # noqa: ARG001
    """jax-35915: the loss over the full logits."""
    loss = jax.value_and_grad(lambda both, labels: _losses(*both, labels).mean())
    return Step(loss, _arguments(rows, words, width, jnp.bfloat16))


def head_by_words(*, rows: int = 8192, words: int = 131_072, width: int = 4096, chunk: int = 4096) -> Step:
    """jax-35915: the same with a scan over pieces of the words, each under `jax.checkpoint`."""

    def loss(both: tuple[jax.Array, jax.Array], labels: jax.Array) -> jax.Array:
        x, weights = both

        @jax.checkpoint
        def piece(carry: tuple[jax.Array, jax.Array], part: jax.Array) -> tuple[Any, None]:
            most, total = carry
            logits = (x @ part.T).astype(jnp.float32)
            new = jax.lax.stop_gradient(jnp.maximum(most, logits.max(-1)))
            return (new, total * jnp.exp(most - new) + jnp.exp(logits - new[:, None]).sum(-1)), None

        start = jnp.full(rows, -jnp.inf), jnp.zeros(rows)
        (most, total), _ = jax.lax.scan(piece, start, weights.reshape(-1, chunk, width))
        right = jnp.einsum("nd,nd->n", x, weights[labels], preferred_element_type=jnp.float32)
        return (jnp.log(total) + most - right).mean()

    return Step(jax.value_and_grad(loss), _arguments(rows, words, width, jnp.bfloat16))


def long_head(*, rows: int = 16_384, words: int = 153_600, width: int = 2048, chunk: int = 512) -> Step:  # noqa: ARG001
    """axlearn-1236: the loss over the full logits of a long sequence."""
    loss = jax.value_and_grad(lambda both, labels: _losses(*both, labels).mean())
    return Step(loss, _arguments(rows, words, width, jnp.bfloat16))


def long_head_by_rows(*, rows: int = 16_384, words: int = 153_600, width: int = 2048, chunk: int = 512) -> Step:
    """axlearn-1236: the same with a scan over pieces of the sequence, each under `jax.checkpoint`."""

    def loss(both: tuple[jax.Array, jax.Array], labels: jax.Array) -> jax.Array:
        x, weights = both
        piece = jax.checkpoint(lambda total, part: (total + _losses(part[0], weights, part[1]).sum(), None))
        parts = x.reshape(-1, chunk, width), labels.reshape(-1, chunk)
        return jax.lax.scan(piece, jnp.float32(0), parts)[0] / rows

    return Step(jax.value_and_grad(loss), _arguments(rows, words, width, jnp.bfloat16))


def wide_head(*, rows: int = 16_384, words: int = 248_320, width: int = 2048, chunk: int = 256) -> Step:
    """trl-6858: the loss over the full logits, one product."""
    return long_head(rows=rows, words=words, width=width, chunk=chunk)


def wide_head_by_rows(*, rows: int = 16_384, words: int = 248_320, width: int = 2048, chunk: int = 256) -> Step:
    """trl-6858: the same in pieces of positions."""
    return long_head_by_rows(rows=rows, words=words, width=width, chunk=chunk)


ENTRIES = (
    Entry(
        name="jax-35915",
        address="https://github.com/jax-ml/jax/pull/35915",
        problem="the logits of a loss head take more than the network",
        written=head,
        advised=head_by_words,
        advice="pieces of 4,096 words",
        added="The thread has no width; the entry takes 4,096. `jax.checkpoint` on each piece stands for the thread's"
        " hand-written backward pass.",
        small={"rows": 4, "words": 8, "width": 4, "chunk": 4},
    ),
    Entry(
        name="axlearn-1236",
        address="https://github.com/apple/axlearn/pull/1236",
        problem="float32 logits of 16k positions and 153k words",
        written=long_head,
        advised=long_head_by_rows,
        advice="pieces of 512 positions",
        added="The thread has no width; the entry takes 2,048. `jax.checkpoint` on each piece is added.",
        small={"rows": 8, "words": 8, "width": 4, "chunk": 4},
    ),
    Entry(
        name="trl-6858",
        address="https://github.com/huggingface/trl/pull/6858",
        problem="logits of 16,384 positions and 248,320 words, in PyTorch",
        written=wide_head,
        advised=wide_head_by_rows,
        advice="pieces of 256 positions",
        added="The entry is the thread's reference in JAX. The thread's own remedy is a fused kernel for PyTorch;"
        " pieces of positions are that library's earlier one.",
        small={"rows": 8, "words": 8, "width": 4, "chunk": 4},
    ),
)
