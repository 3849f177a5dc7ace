"""BERT-large in pre-training, bfloat16 over float32, AdamW, dropout: 335 million parameters and its heads.

Devlin, Chang, Lee and Toutanova 2018. Both of its tasks: 15 of 100 tokens are guessed, read from their places alone,
through a head that is tied to the embedding, and whether the second part of the text follows the first.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.models.blocks import Remat, as_written
from benchmarks.models.mixed import Dense, Embed, LayerNorm, attend, join_heads, split_heads
from benchmarks.models.tasks import cross_entropy
from benchmarks.models.training import ADAMW, TrainingStep, training_step


class Block(nn.Module):
    """Attention and a feed-forward layer, each added to the stream, which is then normalised."""

    heads: int
    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width = x.shape[-1]
        q, k, v = (split_heads(Dense(width, name=name)(x), self.heads) for name in ("query", "key", "value"))
        mixed = Dense(width, name="proj")(join_heads(attend(q, k, v)))
        x = LayerNorm(name="after_attention")(x + self.dropped(mixed))
        y = Dense(width, name="fc2")(nn.gelu(Dense(4 * width, name="fc")(x), approximate=False))
        return LayerNorm(name="after_fc")(x + self.dropped(y))

    def dropped(self, x: jax.Array) -> jax.Array:
        """With some numbers set to zero."""
        return nn.Dropout(self.dropout, deterministic=False)(x)


class Bert(nn.Module):
    """From tokens, parts and the places to guess at, logits of the guesses and of whether the parts belong together."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    dropout: float
    remat: Remat

    @nn.compact
    def __call__(self, tokens: jax.Array, parts: jax.Array, places: jax.Array) -> tuple[jax.Array, jax.Array]:
        embed = Embed(self.vocabulary, self.width, name="tokens")
        positions = Embed(512, self.width, name="positions")(jnp.arange(tokens.shape[1]))
        x = LayerNorm(name="start")(embed(tokens) + Embed(2, self.width, name="parts")(parts) + positions)
        x = nn.Dropout(self.dropout, deterministic=False)(x)
        for i in range(self.layers):
            x = self.remat(Block)(self.heads, self.dropout, name=f"block_{i}")(x)
        first = nn.tanh(Dense(self.width, name="pooler")(x[:, 0]))
        guessed = self.guesses(embed, jnp.take_along_axis(x, places[..., None], axis=1))
        return guessed, Dense(2, name="follows")(first)

    def guesses(self, embed: nn.Module, x: jax.Array) -> jax.Array:
        """Logits of tokens."""
        x = LayerNorm(name="guess_norm")(nn.gelu(Dense(self.width, name="guess")(x), approximate=False))
        return embed.attend(x) + self.param("guess_bias", nn.initializers.zeros, (self.vocabulary,))


def step(
    *,
    batch: int = 16,
    sequence: int = 512,
    layers: int = 24,
    width: int = 1024,
    heads: int = 16,
    vocabulary: int = 30522,
    dropout: float = 0.1,
    optimiser: optax.GradientTransformation = ADAMW,
    remat: Remat = as_written,
) -> TrainingStep:
    """BERT-large, or another size of it.

    Args:
      batch: Texts a step.
      sequence: Tokens of a text, at most 512.
      layers: Blocks.
      width: Of the stream.
      heads: Of attention.
      vocabulary: Tokens there are.
      dropout: Share of the stream's numbers that is dropped.
      optimiser: What makes updates of gradients.
      remat: Applied to each block, before it is called; see `blocks`.
    """
    model = Bert(layers, width, heads, vocabulary, dropout, remat)
    guesses = -(-sequence * 15 // 100)

    def made(key: jax.Array) -> dict[str, jax.Array]:
        keys = jax.random.split(key, 5)
        half = jnp.arange(sequence) >= sequence // 2
        return {
            "tokens": jax.random.randint(keys[0], (batch, sequence), 0, vocabulary),
            "parts": jnp.broadcast_to(half.astype(jnp.int32), (batch, sequence)),
            "places": jax.random.randint(keys[1], (batch, guesses), 0, sequence),
            "hidden": jax.random.randint(keys[2], (batch, guesses), 0, vocabulary),
            "follows": jax.random.randint(keys[3], (batch,), 0, 2),
            "dropout": keys[4],
        }

    def init(key: jax.Array, batch: Any) -> Mapping[str, Any]:
        rngs = {"params": key, "dropout": batch["dropout"]}
        return model.init(rngs, batch["tokens"], batch["parts"], batch["places"])

    def loss(variables: Mapping[str, Any], batch: Any) -> tuple[jax.Array, Mapping[str, Any]]:
        rngs = {"dropout": batch["dropout"]}
        guessed, follows = model.apply(variables, batch["tokens"], batch["parts"], batch["places"], rngs=rngs)
        return cross_entropy(guessed, batch["hidden"]) + cross_entropy(follows, batch["follows"]), {}

    return training_step(init=init, loss=loss, batch=made, optimiser=optimiser)


def small() -> dict[str, Any]:
    """Arguments of `step` for a CPU."""
    return {"batch": 2, "sequence": 16, "layers": 2, "width": 32, "heads": 2, "vocabulary": 64}
