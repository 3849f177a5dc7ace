"""Inception-V3 without its auxiliary classifier, float32, SGD with momentum: 23.8 million parameters.

Szegedy, Vanhoucke, Ioffe, Shlens and Wojna 2015, section 6. A mixed block is a few towers of convolutions side by side.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.models.convolution import ConvNorm
from benchmarks.models.tasks import image_classifier
from benchmarks.models.training import SGD, TrainingStep

Conv = partial(ConvNorm, epsilon=1e-3)
Half = partial(Conv, kernel=(3, 3), stride=2, padded=False)
"""A convolution that halves the image."""


class Mixed(nn.Module):
    """What the five kinds of mixed block have in common.

    Attributes:
      of: Channels are given for the real network; this is what a narrower one makes of them.
    """

    of: Any

    def tower(self, x: jax.Array, *layers: tuple[int, tuple[int, int]]) -> jax.Array:
        """Convolutions one after the other, each given by its channels and its kernel."""
        for features, kernel in layers:
            x = Conv(self.of(features), kernel)(x)
        return x

    def pooled(self, x: jax.Array, features: int) -> jax.Array:
        """A mean over each 3 x 3 window, and a convolution."""
        return Conv(self.of(features))(nn.avg_pool(x, (3, 3), padding=((1, 1), (1, 1))))


def halved(x: jax.Array) -> jax.Array:
    """The largest of each 3 x 3 window, two apart."""
    return nn.max_pool(x, (3, 3), strides=(2, 2))


def beside(*towers: jax.Array) -> jax.Array:
    """Joins towers along channels."""
    return jnp.concatenate(towers, axis=-1)


class MixedA(Mixed):
    """Up to 5 x 5, at 35 x 35."""

    pool: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return beside(
            self.tower(x, (64, (1, 1))),
            self.tower(x, (48, (1, 1)), (64, (5, 5))),
            self.tower(x, (64, (1, 1)), (96, (3, 3)), (96, (3, 3))),
            self.pooled(x, self.pool),
        )


class MixedB(Mixed):
    """From 35 x 35 to 17 x 17."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        deep = self.tower(x, (64, (1, 1)), (96, (3, 3)))
        return beside(Half(self.of(384))(x), Half(self.of(96))(deep), halved(x))


class MixedC(Mixed):
    """7 x 7 as 1 x 7 and 7 x 1, at 17 x 17."""

    inner: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        n, wide, tall = self.inner, (1, 7), (7, 1)
        return beside(
            self.tower(x, (192, (1, 1))),
            self.tower(x, (n, (1, 1)), (n, wide), (192, tall)),
            self.tower(x, (n, (1, 1)), (n, tall), (n, wide), (n, tall), (192, wide)),
            self.pooled(x, 192),
        )


class MixedD(Mixed):
    """From 17 x 17 to 8 x 8."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        left = self.tower(x, (192, (1, 1)))
        right = self.tower(x, (192, (1, 1)), (192, (1, 7)), (192, (7, 1)))
        return beside(Half(self.of(320))(left), Half(self.of(192))(right), halved(x))


class MixedE(Mixed):
    """1 x 3 and 3 x 1 side by side, at 8 x 8."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        left = self.tower(x, (384, (1, 1)))
        right = self.tower(x, (448, (1, 1)), (384, (3, 3)))
        forked = [self.tower(y, (384, kernel)) for y in (left, right) for kernel in ((1, 3), (3, 1))]
        return beside(self.tower(x, (320, (1, 1))), *forked, self.pooled(x, 192))


class Inception(nn.Module):
    """A stem, the mixed blocks, and a classifier."""

    pools: Sequence[int]
    inners: Sequence[int]
    last: int
    width: float
    classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.stem(x)
        for i, pool in enumerate(self.pools):
            x = MixedA(self.of, pool, name=f"a_{i}")(x)
        x = MixedB(self.of, name="b")(x)
        for i, inner in enumerate(self.inners):
            x = MixedC(self.of, inner, name=f"c_{i}")(x)
        x = MixedD(self.of, name="d")(x)
        for i in range(self.last):
            x = MixedE(self.of, name=f"e_{i}")(x)
        return nn.Dense(self.classes, name="head")(x.mean(axis=(1, 2)))

    def of(self, features: int) -> int:
        """Channels of this width of the network."""
        return max(1, round(features * self.width))

    def stem(self, x: jax.Array) -> jax.Array:
        """From 299 x 299 to 35 x 35."""
        x = Half(self.of(32))(x)
        x = Conv(self.of(32), (3, 3), padded=False)(x)
        x = halved(Conv(self.of(64), (3, 3))(x))
        x = Conv(self.of(80))(x)
        return halved(Conv(self.of(192), (3, 3), padded=False)(x))


def step(
    *,
    batch: int = 96,
    size: int = 299,
    pools: tuple[int, ...] = (32, 64, 64),
    inners: tuple[int, ...] = (128, 160, 160, 192),
    last: int = 2,
    width: float = 1.0,
    classes: int = 1000,
    optimiser: optax.GradientTransformation = SGD,
) -> TrainingStep:
    """Inception-V3, or a narrower and shallower one.

    Args:
      batch: Images a step.
      size: Height and width of an image, at least 75.
      pools: For each block at 35 x 35, channels of its pooled tower.
      inners: For each block at 17 x 17, channels inside its towers.
      last: Blocks at 8 x 8.
      width: Factor of all channels.
      classes: Classes.
      optimiser: What makes updates of gradients.
    """
    model = Inception(pools, inners, last, width, classes)
    return image_classifier(model, batch=batch, size=size, classes=classes, optimiser=optimiser)


def small() -> dict[str, Any]:
    """Arguments of `step` for a CPU."""
    return {"batch": 2, "size": 75, "pools": (32,), "inners": (128,), "last": 1, "width": 1 / 16, "classes": 10}
