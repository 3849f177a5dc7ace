"""ResNet-50 with batch normalisation, float32, SGD with momentum: 25.6 million parameters; ResNet-18: 11.7 million.

He, Zhang, Ren and Sun 2015, table 1; the stride of a block is in its 3 x 3 convolution, as is now usual.
"""

from typing import Any

import flax.linen as nn
import jax
import optax

from benchmarks.models.blocks import Remat, as_written
from benchmarks.models.convolution import ConvNorm
from benchmarks.models.tasks import image_classifier
from benchmarks.models.training import SGD, TrainingStep


class Bottleneck(nn.Module):
    """Narrow, convolve, widen fourfold, and add what came in."""

    width: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = ConvNorm(self.width)(x)
        y = ConvNorm(self.width, (3, 3), self.stride)(y)
        y = ConvNorm(4 * self.width, relu=False)(y)
        if x.shape != y.shape:
            x = ConvNorm(4 * self.width, stride=self.stride, relu=False, name="shortcut")(x)
        return nn.relu(x + y)


class Basic(nn.Module):
    """Convolve twice, and add what came in."""

    width: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = ConvNorm(self.width, (3, 3), self.stride)(x)
        y = ConvNorm(self.width, (3, 3), relu=False)(y)
        if x.shape != y.shape:
            x = ConvNorm(self.width, stride=self.stride, relu=False, name="shortcut")(x)
        return nn.relu(x + y)


class ResNet(nn.Module):
    """A stem, stages of blocks that halve the image and double the width, and a classifier."""

    blocks: tuple[int, ...]
    width: int
    classes: int
    remat: Remat
    basic: bool
    small_images: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if self.small_images:
            x = ConvNorm(self.width, (3, 3), name="stem")(x)
        else:
            x = ConvNorm(self.width, (7, 7), 2, name="stem")(x)
            x = nn.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        block = self.remat(Basic if self.basic else Bottleneck)
        for stage, count in enumerate(self.blocks):
            for i in range(count):
                stride = 2 if stage > 0 and i == 0 else 1
                x = block(self.width * 2**stage, stride, name=f"stage_{stage}_block_{i}")(x)
        return nn.Dense(self.classes, name="head")(x.mean(axis=(1, 2)))


def step(
    *,
    batch: int = 115,
    size: int = 224,
    blocks: tuple[int, ...] = (3, 4, 6, 3),
    width: int = 64,
    classes: int = 1000,
    basic: bool = False,
    small_images: bool = False,
    optimiser: optax.GradientTransformation = SGD,
    remat: Remat = as_written,
) -> TrainingStep:
    """ResNet-50, or another depth of it.

    Args:
      batch: Images a step.
      size: Height and width of an image.
      blocks: Blocks of each stage.
      width: Channels of the stem.
      classes: Classes.
      basic: Whether a block is two wide convolutions, not a bottleneck.
      small_images: Whether the stem leaves the image as large as it is, as is usual for 32 x 32.
      optimiser: What makes updates of gradients.
      remat: Applied to each block, before it is called; see `blocks`.
    """
    model = ResNet(blocks, width, classes, remat, basic, small_images)
    return image_classifier(model, batch=batch, size=size, classes=classes, optimiser=optimiser)


def small() -> dict[str, Any]:
    """Arguments of `step` for a CPU."""
    return {"batch": 4, "size": 32, "blocks": (1, 1), "width": 8, "classes": 10}
