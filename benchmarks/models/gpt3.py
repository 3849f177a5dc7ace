"""A decoder of GPT-3's third largest shape: 32 layers of width 4096, 6.7 billion parameters.

Brown and others 2020, table 2.1, "6.7B"; attention is dense in all layers. The model is that of `gpt2`,
whose untied head adds 206 million parameters.
"""

from typing import Any

from benchmarks.models import gpt2
from benchmarks.models.training import TrainingStep


def step(
    *, batch: int = 2, sequence: int = 1024, layers: int = 32, width: int = 4096, heads: int = 32, **others: Any
) -> TrainingStep:
    """The decoder.

    Args:
      batch: Sequences a step.
      sequence: Tokens of a sequence.
      layers: Blocks.
      width: Of the stream.
      heads: Of attention.
      **others: Other arguments of `gpt2.step`.
    """
    return gpt2.step(batch=batch, sequence=sequence, layers=layers, width=width, heads=heads, **others)


def small() -> dict[str, Any]:
    """Arguments of `step` for a CPU."""
    return gpt2.small()
