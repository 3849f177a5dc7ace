"""GPT-2 small, as `jaxckpt demo` has it; medium is another size of it.

The model is that of `jaxckpt.cli.gpt2`, with an untied head: 124 million parameters, and 39 million of the head.
"""

from typing import Any

import optax

from benchmarks.models.blocks import Remat, as_written
from benchmarks.models.tasks import language_model
from benchmarks.models.training import ADAMW, TrainingStep
from jaxckpt.cli.gpt2 import GPT, Block


def step(
    *,
    batch: int = 8,
    sequence: int = 1024,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 50304,
    optimiser: optax.GradientTransformation = ADAMW,
    remat: Remat = as_written,
) -> TrainingStep:
    """A decoder with learned positions.

    Args:
      batch: Sequences a step.
      sequence: Tokens of a sequence.
      layers: Blocks.
      width: Of the stream.
      heads: Of attention.
      vocabulary: Tokens there are.
      optimiser: What makes updates of gradients.
      remat: Applied to each block, before it is called; see `blocks`.
    """
    sizes = {"layers": layers, "width": width, "heads": heads, "vocabulary": vocabulary, "sequence": sequence}
    model = GPT(**sizes, block=remat(Block))
    return language_model(model, batch=batch, sequence=sequence, vocabulary=vocabulary, optimiser=optimiser)


def small() -> dict[str, Any]:
    """Arguments of `step` for a CPU."""
    return {"batch": 2, "sequence": 16, "layers": 2, "width": 32, "heads": 2, "vocabulary": 64}
