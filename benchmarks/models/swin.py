"""Swin-T, bfloat16 over float32, AdamW: 28.3 million parameters.

Liu and others 2021, section 3. Attention is inside windows, which every second block shifts by half a window; what
comes from the image's other side is masked. Stochastic depth is left out.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.models.mixed import Dense, LayerNorm, attend, join_heads, split_heads
from benchmarks.models.tasks import image_classifier
from benchmarks.models.training import ADAMW, TrainingStep


def windows_of(x: jax.Array, side: int) -> jax.Array:
    """Maps (batch, height, width, channels) to (batch, windows, side * side, channels)."""
    batch, height, width, channels = x.shape
    x = x.reshape(batch, height // side, side, width // side, side, channels)
    return x.swapaxes(2, 3).reshape(batch, -1, side * side, channels)


def image_of(x: jax.Array, height: int, width: int) -> jax.Array:
    """Undoes `windows_of`."""
    batch, _, area, channels = x.shape
    side = round(area**0.5)
    x = x.reshape(batch, height // side, width // side, side, side, channels)
    return x.swapaxes(2, 3).reshape(batch, height, width, channels)


def offsets(side: int) -> np.ndarray:
    """For each pair of places in a window, which of the (2 side - 1)^2 offsets lies between them."""
    places = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij")).reshape(2, -1)
    rows, columns = places[:, :, None] - places[:, None, :] + side - 1
    return rows * (2 * side - 1) + columns


def strangers(height: int, width: int, side: int, shift: int) -> np.ndarray:
    """For each window, the pairs of places that only the shift brought together: (windows, side^2, side^2)."""
    rows, columns = (np.digitize(np.arange(n), [n - side, n - shift]) for n in (height, width))
    region = rows[:, None] * 3 + columns
    region = region.reshape(height // side, side, width // side, side).swapaxes(1, 2).reshape(-1, side * side)
    return region[:, :, None] != region[:, None, :]


class WindowAttention(nn.Module):
    """Attention inside windows, with a learned bias for each offset."""

    heads: int
    side: int
    shift: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        _, height, across, width = x.shape
        if self.shift:
            x = jnp.roll(x, (-self.shift, -self.shift), axis=(1, 2))
        qkv = Dense(3 * width, name="qkv")(windows_of(x, self.side))
        q, k, v = (split_heads(part, self.heads) for part in jnp.split(qkv, 3, axis=-1))
        table = self.param("bias", nn.initializers.normal(0.02), ((2 * self.side - 1) ** 2, self.heads))
        bias = table[offsets(self.side)].transpose(2, 0, 1)
        if self.shift:
            apart = strangers(height, across, self.side, self.shift)
            bias = bias + np.where(apart, np.float32(-100), np.float32(0))[:, None]
        mixed = join_heads(attend(q, k, v, bias=bias))
        x = image_of(Dense(width, name="proj")(mixed), height, across)
        return jnp.roll(x, (self.shift, self.shift), axis=(1, 2)) if self.shift else x


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a normalisation, each added to the stream."""

    heads: int
    side: int
    shift: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width = x.shape[-1]
        attention = WindowAttention(self.heads, self.side, self.shift, name="attention")
        x = x + attention(LayerNorm(name="before_attention")(x))
        y = Dense(4 * width, name="fc")(LayerNorm(name="before_fc")(x))
        return x + Dense(width, name="fc2")(nn.gelu(y, approximate=False))


class Merge(nn.Module):
    """Four neighbours become one place of twice the width."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        four = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return Dense(2 * x.shape[-1], use_bias=False)(LayerNorm()(jnp.concatenate(four, axis=-1)))


class Swin(nn.Module):
    """Patches of 4 x 4, stages of blocks, merged between them, and a classifier."""

    depths: tuple[int, ...]
    heads: tuple[int, ...]
    width: int
    side: int
    classes: int

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        patches = nn.Conv(self.width, (4, 4), strides=(4, 4), padding="VALID", dtype=jnp.bfloat16, name="patches")
        x = LayerNorm(name="start")(patches(images))
        for stage, (depth, heads) in enumerate(zip(self.depths, self.heads, strict=True)):
            if stage > 0:
                x = Merge(name=f"merge_{stage}")(x)
            for i in range(depth):
                shift = self.side // 2 if i % 2 and x.shape[1] > self.side else 0
                x = Block(heads, self.side, shift, name=f"stage_{stage}_block_{i}")(x)
        return Dense(self.classes, name="head")(LayerNorm(name="last")(x).mean(axis=(1, 2)))


def step(
    *,
    batch: int = 40,
    size: int = 224,
    depths: tuple[int, ...] = (2, 2, 6, 2),
    heads: tuple[int, ...] = (3, 6, 12, 24),
    width: int = 96,
    side: int = 7,
    classes: int = 1000,
    optimiser: optax.GradientTransformation = ADAMW,
) -> TrainingStep:
    """Swin-T, or another size of it.

    Args:
      batch: Images a step.
      size: Height and width of an image; a quarter of it, halved at each stage, must be a multiple of `side`.
      depths: Blocks of each stage.
      heads: Of attention, at each stage.
      width: Of the first stage; each next one has twice that.
      side: Places of a window's side.
      classes: Classes.
      optimiser: What makes updates of gradients.
    """
    model = Swin(depths, heads, width, side, classes)
    return image_classifier(model, batch=batch, size=size, classes=classes, optimiser=optimiser)


def small() -> dict[str, Any]:
    """Arguments of `step` for a CPU."""
    return {"batch": 2, "size": 32, "depths": (2, 1), "heads": (2, 4), "width": 16, "side": 4, "classes": 10}
