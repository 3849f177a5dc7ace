"""An encoder and decoder in T5's manner, of the base shape: 223 million parameters, bfloat16 over float32, AdamW.

Raffel and others 2019, section 2.1: normalisation by root mean square before each part, no biases, scores without a
scale, a learned bias for each bucket of distances that all layers of a stack share; the head is tied to the embedding.
"""

from collections.abc import Mapping
from math import log
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.models.blocks import Remat, as_written
from benchmarks.models.mixed import Dense, Embed, RMSNorm, attend, join_heads, split_heads
from benchmarks.models.tasks import cross_entropy
from benchmarks.models.training import ADAMW, TrainingStep, training_step

BUCKETS = 32
FARTHEST = 128


def buckets_of(sequence: int, *, causal: bool) -> np.ndarray:
    """For each query and key, the bucket of their distance: near ones have their own, far ones share, by logarithm.

    Half of the buckets are for keys that come later, unless there are none.
    """
    distance = np.arange(sequence)[:, None] - np.arange(sequence)[None, :]
    count = BUCKETS if causal else BUCKETS // 2
    later = np.where(distance < 0, 0 if causal else count, 0)
    distance = np.maximum(distance, 0) if causal else np.abs(distance)
    near = count // 2
    far = near + np.log(np.maximum(distance, 1) / near) / log(FARTHEST / near) * (count - near)
    return later + np.where(distance < near, distance, np.minimum(far.astype(int), count - 1))


class Attention(nn.Module):
    """Attention of one sequence to itself or to another, behind a normalisation, added to the stream."""

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array, other: jax.Array | None = None, bias: jax.Array | None = None) -> jax.Array:
        y = RMSNorm()(x)
        read = y if other is None else other
        width = x.shape[-1]
        q, k, v = (
            split_heads(Dense(width, use_bias=False, name=name)(source), self.heads)
            for name, source in (("query", y), ("key", read), ("value", read))
        )
        return x + Dense(width, use_bias=False, name="proj")(join_heads(attend(q, k, v, bias=bias, scale=1.0)))


class FeedForward(nn.Module):
    """Two matrices with ReLU between, behind a normalisation, added to the stream."""

    hidden: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = nn.relu(Dense(self.hidden, use_bias=False, name="fc")(RMSNorm()(x)))
        return x + Dense(x.shape[-1], use_bias=False, name="fc2")(y)


class Layer(nn.Module):
    """Attention, of the decoder also to what the encoder made, and a feed-forward layer."""

    heads: int
    hidden: int

    @nn.compact
    def __call__(self, x: jax.Array, bias: jax.Array, read: jax.Array | None) -> jax.Array:
        x = Attention(self.heads, name="attention")(x, bias=bias)
        if read is not None:
            x = Attention(self.heads, name="reading")(x, read)
        return FeedForward(self.hidden, name="fc")(x)


class Stack(nn.Module):
    """The encoder, or the decoder where there is something to read."""

    layers: int
    heads: int
    hidden: int
    remat: Remat

    @nn.compact
    def __call__(self, x: jax.Array, read: jax.Array | None = None) -> jax.Array:
        bias = self.bias(x.shape[1], causal=read is not None)
        for i in range(self.layers):
            x = self.remat(Layer)(self.heads, self.hidden, name=f"layer_{i}")(x, bias, read)
        return RMSNorm(name="last")(x)

    def bias(self, sequence: int, *, causal: bool) -> jax.Array:
        """What is added to the (heads, sequence, sequence) scores."""
        table = self.param("bias", nn.initializers.normal(0.02), (BUCKETS, self.heads))
        bias = table[buckets_of(sequence, causal=causal)].transpose(2, 0, 1)
        return jnp.where(jnp.tril(jnp.ones((sequence, sequence), bool)), bias, -1e30) if causal else bias


class T5(nn.Module):
    """From a text and what was said so far, logits of what is said next."""

    layers: int
    width: int
    heads: int
    hidden: int
    vocabulary: int
    remat: Remat

    @nn.compact
    def __call__(self, text: jax.Array, said: jax.Array) -> jax.Array:
        embed = Embed(self.vocabulary, self.width, name="tokens")
        read = Stack(self.layers, self.heads, self.hidden, self.remat, name="encoder")(embed(text))
        x = Stack(self.layers, self.heads, self.hidden, self.remat, name="decoder")(embed(said), read)
        return embed.attend(x * self.width**-0.5)


def step(
    *,
    batch: int = 16,
    sequence: int = 512,
    answer: int = 128,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    hidden: int = 3072,
    vocabulary: int = 32128,
    optimiser: optax.GradientTransformation = ADAMW,
    remat: Remat = as_written,
) -> TrainingStep:
    """T5 base, or another size of it.

    Args:
      batch: Texts a step.
      sequence: Tokens of a text.
      answer: Tokens of an answer.
      layers: Layers of the encoder, and as many of the decoder.
      width: Of the stream.
      heads: Of attention.
      hidden: Of the feed-forward layers.
      vocabulary: Tokens there are.
      optimiser: What makes updates of gradients.
      remat: Applied to each layer of the encoder and of the decoder, before it is called; see `blocks`.
    """
    model = T5(layers, width, heads, hidden, vocabulary, remat)

    def made(key: jax.Array) -> dict[str, jax.Array]:
        for_text, for_answer = jax.random.split(key)
        return {
            "text": jax.random.randint(for_text, (batch, sequence), 0, vocabulary),
            "answer": jax.random.randint(for_answer, (batch, answer + 1), 0, vocabulary),
        }

    def init(key: jax.Array, batch: Any) -> Mapping[str, Any]:
        return model.init(key, batch["text"], batch["answer"][:, :-1])

    def loss(variables: Mapping[str, Any], batch: Any) -> tuple[jax.Array, Mapping[str, Any]]:
        logits = model.apply(variables, batch["text"], batch["answer"][:, :-1])
        return cross_entropy(logits, batch["answer"][:, 1:]), {}

    return training_step(init=init, loss=loss, batch=made, optimiser=optimiser)


def small() -> dict[str, Any]:
    """Arguments of `step` for a CPU."""
    return {
        "batch": 2,
        "sequence": 16,
        "answer": 8,
        "layers": 2,
        "width": 32,
        "heads": 2,
        "hidden": 64,
        "vocabulary": 64,
    }
