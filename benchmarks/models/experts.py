"""A decoder whose feed-forward layers are a mixture of experts, two of eight for each token, by dispatch and combine.

Lepikhin and others 2020 (GShard), algorithm 1: each sequence is a group, each expert takes so many tokens of a group
and no more, in their order, first choices before second ones; tokens beyond that pass by. A loss keeps experts equally
busy. Attention and shape are those of `gpt2`: 521 million parameters, and 39 million of the head.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.models.blocks import Remat, as_written
from benchmarks.models.mixed import LayerNorm
from benchmarks.models.tasks import language_model
from benchmarks.models.training import ADAMW, TrainingStep
from jaxckpt.cli.gpt2 import GPT, Block

BALANCE = 0.01
"""Weight of the loss that keeps experts equally busy."""


def routes(odds: jax.Array, *, chosen: int, capacity: int) -> jax.Array:
    """Which token goes to which place of which expert, with what weight.

    Args:
      odds: (groups, tokens, experts), positive.
      chosen: Experts of a token.
      capacity: Places of an expert in a group.

    Returns:
      (groups, tokens, experts, capacity); zero where a token does not go.
    """
    weights, experts = jax.lax.top_k(odds, chosen)
    weights = weights / weights.sum(axis=-1, keepdims=True)
    taken = jnp.zeros((odds.shape[0], 1, odds.shape[-1]), jnp.int32)
    made = jnp.zeros((*odds.shape, capacity), odds.dtype)
    for i in range(chosen):
        goes = jax.nn.one_hot(experts[..., i], odds.shape[-1], dtype=jnp.int32)
        place = (jnp.cumsum(goes, axis=1) - 1 + taken) * goes + (goes - 1)
        taken = taken + goes.sum(axis=1, keepdims=True)
        # Places below zero and beyond the capacity are nobody's: `one_hot` gives zeros there.
        made = made + weights[..., i, None, None] * jax.nn.one_hot(place, capacity, dtype=odds.dtype)
    return made


class Experts(nn.Module):
    """A feed-forward layer of which each token sees a few experts."""

    hidden: int
    experts: int
    chosen: int
    spare: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width = x.shape[-1]
        odds = jax.nn.softmax(nn.Dense(self.experts, use_bias=False, name="router")(x.astype(jnp.float32)))
        capacity = max(1, int(self.spare * x.shape[1] * self.chosen / self.experts))
        combine = routes(odds, chosen=self.chosen, capacity=capacity)
        self.sow("losses", "balance", BALANCE * self.imbalance(odds))
        initial = nn.initializers.lecun_normal(batch_axis=0)
        enter = self.param("enter", initial, (self.experts, width, self.hidden)).astype(x.dtype)
        leave = self.param("leave", initial, (self.experts, self.hidden, width)).astype(x.dtype)
        inputs = jnp.einsum("gtec,gtw->egcw", (combine > 0).astype(x.dtype), x)
        hidden = nn.gelu(jnp.einsum("egcw,ewh->egch", inputs, enter))
        outputs = jnp.einsum("egch,ehw->egcw", hidden, leave)
        return jnp.einsum("gtec,egcw->gtw", combine.astype(x.dtype), outputs)

    def imbalance(self, odds: jax.Array) -> jax.Array:
        """One where all experts are first choice equally often, more otherwise."""
        first = jax.nn.one_hot(odds.argmax(axis=-1), self.experts).mean(axis=(0, 1))
        return self.experts * (first * odds.mean(axis=(0, 1))).sum()


class ExpertBlock(Block):
    """Attention and experts, each behind a normalisation, each added to the stream."""

    experts: int = 8
    chosen: int = 2
    spare: float = 1.25

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (batch, sequence, width) to the same shape."""
        x = x + self.attention(LayerNorm(name="before_attention")(x))
        mixture = Experts(4 * self.width, self.experts, self.chosen, self.spare, name="experts_of_token")
        return x + mixture(LayerNorm(name="before_experts")(x))


def step(
    *,
    batch: int = 8,
    sequence: int = 1024,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 50304,
    experts: int = 8,
    chosen: int = 2,
    spare: float = 1.25,
    optimiser: optax.GradientTransformation = ADAMW,
    remat: Remat = as_written,
) -> TrainingStep:
    """The decoder.

    Args:
      batch: Sequences a step.
      sequence: Tokens of a sequence.
      layers: Blocks.
      width: Of the stream.
      heads: Of attention.
      vocabulary: Tokens there are.
      experts: Experts of a layer.
      chosen: Experts of a token.
      spare: Places of all experts, as a multiple of what tokens need.
      optimiser: What makes updates of gradients.
      remat: Applied to each block, before it is called; see `blocks`.
    """

    def block(width: int, heads: int, *, name: str) -> ExpertBlock:
        return remat(ExpertBlock)(width, heads, experts=experts, chosen=chosen, spare=spare, name=name)

    model = GPT(layers=layers, width=width, heads=heads, vocabulary=vocabulary, sequence=sequence, block=block)
    return language_model(model, batch=batch, sequence=sequence, vocabulary=vocabulary, optimiser=optimiser)


def small() -> dict[str, Any]:
    """Arguments of `step` for a CPU."""
    return {"batch": 2, "sequence": 16, "layers": 2, "width": 32, "heads": 2, "vocabulary": 64, "experts": 4}
