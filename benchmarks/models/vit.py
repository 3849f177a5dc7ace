"""ViT-B/16, bfloat16 over float32, AdamW: 86.6 million parameters.

Dosovitskiy and others 2020, table 1, with a class token.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.models.blocks import Remat, as_written
from benchmarks.models.mixed import Dense, Dropout, LayerNorm, attend, join_heads, split_heads
from benchmarks.models.tasks import image_classifier
from benchmarks.models.training import ADAMW, TrainingStep


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a normalisation, each added to the stream.

    Dropout stands behind every dense layer but that of queries, keys and values, as in the paper's appendix B.1.
    """

    heads: int
    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width = x.shape[-1]
        qkv = Dense(3 * width, name="qkv")(LayerNorm(name="before_attention")(x))
        q, k, v = (split_heads(part, self.heads) for part in jnp.split(qkv, 3, axis=-1))
        mixed = Dense(width, name="proj")(join_heads(attend(q, k, v)))
        x = x + Dropout(self.dropout)(mixed)
        y = Dense(4 * width, name="fc")(LayerNorm(name="before_fc")(x))
        y = Dropout(self.dropout)(nn.gelu(y, approximate=False))
        return x + Dropout(self.dropout)(Dense(width, name="fc2")(y))


class ViT(nn.Module):
    """Patches as tokens, blocks, and a classifier of the class token."""

    layers: int
    width: int
    heads: int
    patch: int
    classes: int
    dropout: float
    remat: Remat

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        side = (self.patch, self.patch)
        x = nn.Conv(self.width, side, strides=side, padding="VALID", dtype=jnp.bfloat16, name="patches")(images)
        x = x.reshape(x.shape[0], -1, self.width)
        first = self.param("class", nn.initializers.zeros, (1, 1, self.width)).astype(x.dtype)
        x = jnp.concatenate([jnp.broadcast_to(first, (x.shape[0], 1, self.width)), x], axis=1)
        positions = self.param("positions", nn.initializers.normal(0.02), (1, *x.shape[1:]))
        x = x + positions.astype(x.dtype)
        for i in range(self.layers):
            x = self.remat(Block)(self.heads, self.dropout, name=f"block_{i}")(x)
        return Dense(self.classes, name="head")(LayerNorm(name="last")(x)[:, 0])


def step(
    *,
    batch: int = 64,
    size: int = 224,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    patch: int = 16,
    classes: int = 1000,
    dropout: float = 0.0,
    optimiser: optax.GradientTransformation = ADAMW,
    remat: Remat = as_written,
) -> TrainingStep:
    """ViT-B/16, or another size of it.

    Args:
      batch: Images a step.
      size: Height and width of an image.
      layers: Blocks.
      width: Of the stream.
      heads: Of attention.
      patch: Height and width of a patch.
      classes: Classes.
      dropout: Share of elements that each dropout of a block sets to zero.
      optimiser: What makes updates of gradients.
      remat: Applied to each block, before it is called; see `blocks`.
    """
    model = ViT(layers, width, heads, patch, classes, dropout, remat)
    return image_classifier(model, batch=batch, size=size, classes=classes, optimiser=optimiser, is_random=dropout > 0)


def small() -> dict[str, Any]:
    """Arguments of `step` for a CPU."""
    return {"batch": 2, "size": 16, "layers": 2, "width": 32, "heads": 2, "patch": 4, "classes": 10}
