"""A decoder in Llama's manner, of the shape of Llama 3.2 1B: 1.24 billion parameters, bfloat16 over float32, AdamW.

Normalisation by root mean square (Zhang and Sennrich 2019), rotary positions (Su and others 2021), grouped queries
(Ainslie and others 2023), SwiGLU (Shazeer 2020); no biases; the head is tied to the embedding, or has weights of its
own. Its blocks stand one after the other, or are the turns of a `scan` over stacked parameters.
"""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.models.blocks import Between, Remat, as_written, unconstrained
from benchmarks.models.mixed import Dense, Embed, RMSNorm, attend, join_heads, split_heads
from benchmarks.models.tasks import language_model
from benchmarks.models.training import ADAMW, TrainingStep


def rotated(x: jax.Array, *, base: float = 500_000.0) -> jax.Array:
    """Turns pairs of numbers of (batch, sequence, heads, width) by angles that grow with the place."""
    half = x.shape[-1] // 2
    speeds = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None, None] * speeds
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1).astype(x.dtype)


def grouped_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention where several heads of `q` share one of `k` and `v`, with a float32 softmax."""
    batch, sequence, heads, width = q.shape
    q = q.reshape(batch, sequence, k.shape[2], heads // k.shape[2], width)
    scores = jnp.einsum("bqkgd,bskd->bkgqs", q, k).astype(jnp.float32) * width**-0.5
    causal = jnp.tril(jnp.ones((sequence, sequence), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e30), axis=-1).astype(q.dtype)
    return jnp.einsum("bkgqs,bskd->bqkgd", weights, v).reshape(batch, sequence, heads, width)


class Block(nn.Module):
    """Attention and a gated feed-forward layer, each behind a normalisation, each added to the stream."""

    heads: int
    groups: int
    hidden: int
    fused: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(RMSNorm(name="before_attention")(x))
        y = RMSNorm(name="before_fc")(x)
        y = nn.silu(self.dense(self.hidden, "gate")(y)) * self.dense(self.hidden, "up")(y)
        return x + self.dense(x.shape[-1], "down")(y)

    def dense(self, features: int, name: str) -> nn.Module:
        """A matrix without a bias."""
        return Dense(features, use_bias=False, name=name)

    def attention(self, y: jax.Array) -> jax.Array:
        """Causal self-attention, by cuDNN's kernel or written out."""
        width = y.shape[-1]
        shared = width // self.heads * self.groups
        q = rotated(split_heads(self.dense(width, "query")(y), self.heads))
        k = rotated(split_heads(self.dense(shared, "key")(y), self.groups))
        v = split_heads(self.dense(shared, "value")(y), self.groups)
        if self.fused:
            mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
        elif self.groups < self.heads:
            mixed = grouped_attention(q, k, v)
        else:
            later = ~jnp.tril(jnp.ones((y.shape[1],) * 2, bool))
            mixed = attend(q, k, v, bias=jnp.where(later, -1e30, 0.0))
        return self.dense(width, "proj")(join_heads(mixed))


class Llama(nn.Module):
    """Tokens to logits."""

    layers: int
    width: int
    heads: int
    groups: int
    hidden: int
    vocabulary: int
    fused: bool
    scanned: bool
    tied: bool
    remat: Remat
    between: Between

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        embed = Embed(self.vocabulary, self.width, name="tokens")
        x = RMSNorm(name="last")(self.blocks(self.between(embed(tokens))))
        return embed.attend(x) if self.tied else Dense(self.vocabulary, use_bias=False, name="head")(x)

    def blocks(self, x: jax.Array) -> jax.Array:
        """The stream through all of them."""
        block = partial(self.remat(Block), self.heads, self.groups, self.hidden, self.fused)
        if self.scanned:
            over_layers = nn.scan(
                lambda block, x, _: (self.between(block(x)), None),
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=self.layers,
            )
            return over_layers(block(name="block"), x, None)[0]
        for i in range(self.layers):
            x = self.between(block(name=f"block_{i}")(x))
        return x


def step(
    *,
    batch: int = 4,
    sequence: int = 2048,
    layers: int = 16,
    width: int = 2048,
    heads: int = 32,
    groups: int = 8,
    hidden: int = 8192,
    vocabulary: int = 128256,
    fused: bool = False,
    scanned: bool = False,
    tied: bool = True,
    optimiser: optax.GradientTransformation = ADAMW,
    remat: Remat = as_written,
    between: Between = unconstrained,
) -> TrainingStep:
    """The decoder.

    Args:
      batch: Sequences a step.
      sequence: Tokens of a sequence.
      layers: Blocks.
      width: Of the stream.
      heads: Of queries.
      groups: Heads of keys and values.
      hidden: Of the feed-forward layer.
      vocabulary: Tokens there are.
      fused: Attention by cuDNN's kernel; JAX traces it only where it finds cuDNN.
      scanned: The blocks are the turns of one `scan`.
      tied: The head is the embedding.
      optimiser: What makes updates of gradients.
      remat: Applied to each block, before it is called; see `blocks`.
      between: Applied to what passes from block to block; see `blocks`.
    """
    model = Llama(layers, width, heads, groups, hidden, vocabulary, fused, scanned, tied, remat, between)
    return language_model(model, batch=batch, sequence=sequence, vocabulary=vocabulary, optimiser=optimiser)


def small() -> dict[str, Any]:
    """Arguments of `step` for a CPU."""
    return {
        "batch": 2,
        "sequence": 16,
        "layers": 2,
        "width": 32,
        "heads": 4,
        "groups": 2,
        "hidden": 64,
        "vocabulary": 64,
    }
