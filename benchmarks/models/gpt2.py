"""GPT-2 small, as `jaxckpt demo` has it; medium is another size of it.

The model is that of `jaxckpt.cli.gpt2`, with an untied head: 124 million parameters, and 39 million of the head. Its
blocks stand one after the other, or are the iterations of a `scan` over stacked parameters.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.models.blocks import Between, Remat, as_written, unconstrained
from benchmarks.models.tasks import language_model
from benchmarks.models.training import ADAMW, TrainingStep
from jaxckpt.cli.gpt2 import GPT, Block


class DroppingBlock(Block):
    """A block with the dropout of the paper: Radford and others 2019, as Hugging Face's gpt2 has it."""

    dropout: float = 0.1


class ScannedGPT(nn.Module):
    """The decoder with its blocks under `nn.scan`."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    sequence: int
    block: Any = Block
    between: Between = unconstrained

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Maps (batch, sequence) tokens to (batch, sequence, vocabulary) logits."""
        x = nn.Embed(self.vocabulary, self.width, dtype=jnp.bfloat16)(tokens)
        positions = self.param("pos", nn.initializers.normal(0.02), (self.sequence, self.width))
        x = self.between(x + positions.astype(jnp.bfloat16)[None, : tokens.shape[1]])
        block = self.block(self.width, self.heads, name="block")
        over_layers = nn.scan(
            lambda block, x, _: (self.between(block(x)), None),
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            length=self.layers,
        )
        x, _ = over_layers(block, x, None)
        x = nn.LayerNorm(dtype=jnp.bfloat16)(x)
        return nn.Dense(self.vocabulary, dtype=jnp.bfloat16, use_bias=False, name="head")(x)


def step(
    *,
    batch: int = 8,
    sequence: int = 1024,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 50304,
    scanned: bool = False,
    dropout: bool = False,
    optimiser: optax.GradientTransformation = ADAMW,
    remat: Remat = as_written,
    between: Between = unconstrained,
) -> TrainingStep:
    """A decoder with learned positions.

    Args:
      batch: Sequences a step.
      sequence: Tokens of a sequence.
      layers: Blocks.
      width: Of the stream.
      heads: Of attention.
      vocabulary: Tokens there are.
      scanned: The blocks are the iterations of one `scan`.
      dropout: Attention's weights and what each block adds to the stream lose a tenth of their elements.
      optimiser: What makes updates of gradients.
      remat: Applied to each block, before it is called; see `blocks`.
      between: Applied to what passes from block to block, where they are scanned; see `blocks`.
    """
    sizes = {"layers": layers, "width": width, "heads": heads, "vocabulary": vocabulary, "sequence": sequence}
    block = remat(DroppingBlock if dropout else Block)
    model = ScannedGPT(**sizes, block=block, between=between) if scanned else GPT(**sizes, block=block)
    return language_model(
        model, batch=batch, sequence=sequence, vocabulary=vocabulary, optimiser=optimiser, is_random=dropout
    )


def small() -> dict[str, Any]:
    """Arguments of `step` for a CPU."""
    return {"batch": 2, "sequence": 16, "layers": 2, "width": 32, "heads": 2, "vocabulary": 64}
