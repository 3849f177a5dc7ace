"""The supernet of Single Path One-Shot: twenty blocks of four choices each, one path of which is trained at a step.

Guo, Zhang, Mu, Heng, Liu, Wei and Sun 2019: choices are ShuffleNetV2's block with 3 x 3, 5 x 5 and 7 x 7 kernels, and
a deeper one in Xception's manner; batch normalisation has no parameters, since paths share it. All choices have
parameters; those off the path get gradients of zero.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.models.convolution import ConvNorm
from benchmarks.models.tasks import cross_entropy
from benchmarks.models.training import SGD, TrainingStep, training_step

CHOICES = 4
PATH = 0xE4E4E4E4E4
"""In base four its digits are 0, 1, 2, 3 and again from 0: each choice five times."""

Conv = partial(ConvNorm, affine=False)


def choices_of(path: int, *, blocks: int) -> tuple[int, ...]:
    """The choice of each block: the digits of the path's number in base four, the lowest first."""
    return tuple(path // CHOICES**i % CHOICES for i in range(blocks))


def depthwise(x: jax.Array, side: int, *, stride: int = 1) -> jax.Array:
    """Convolves each channel by itself; called inside a module."""
    return Conv(x.shape[-1], (side, side), stride, groups=x.shape[-1], relu=False)(x)


class Choice(nn.Module):
    """One choice of a block: half of the channels pass by, or are halved in size, the others are convolved."""

    features: int
    stride: int
    choice: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if self.stride == 1:
            aside, x = x[..., ::2], x[..., 1::2]
        else:
            aside = Conv(x.shape[-1])(depthwise(x, self.side, stride=2))
        made = self.features - aside.shape[-1]
        y = self.deep(x, made) if self.choice == CHOICES - 1 else self.shuffle(x, made)
        return jnp.concatenate([aside, y], axis=-1)

    @property
    def side(self) -> int:
        """Of the kernels."""
        return 3 if self.choice == CHOICES - 1 else 3 + 2 * self.choice

    def shuffle(self, x: jax.Array, made: int) -> jax.Array:
        """ShuffleNetV2's."""
        y = Conv(self.features // 2)(x)
        return Conv(made)(depthwise(y, self.side, stride=self.stride))

    def deep(self, x: jax.Array, made: int) -> jax.Array:
        """Xception's."""
        y = Conv(self.features // 2)(depthwise(x, self.side, stride=self.stride))
        y = Conv(self.features // 2)(depthwise(y, self.side))
        return Conv(made)(depthwise(y, self.side))


class Block(nn.Module):
    """All choices of a block, of which one is computed.

    Attributes:
      features: Channels made.
      stride: 2 halves the image.
      choice: Which one; None leaves it to the argument.
    """

    features: int
    stride: int
    choice: int | None

    def setup(self) -> None:
        """All choices have parameters, whichever is computed."""
        self.choices = [Choice(self.features, self.stride, i, name=f"choice_{i}") for i in range(CHOICES)]

    def __call__(self, x: jax.Array, choice: jax.Array) -> jax.Array:
        if self.is_initializing():
            first, *_ = [module(x) for module in self.choices]
            return first
        if self.choice is not None:
            return self.choices[self.choice](x)
        return nn.switch(choice, [lambda block, x, i=i: block.choices[i](x) for i in range(CHOICES)], self, x)


class Supernet(nn.Module):
    """A stem, stages of blocks, and a classifier; a choice for each block, or None where the argument has them."""

    blocks: tuple[int, ...]
    features: tuple[int, ...]
    stem: int
    last: int
    classes: int
    choices: tuple[int, ...] | None

    @nn.compact
    def __call__(self, x: jax.Array, choices: jax.Array) -> jax.Array:
        x = Conv(self.stem, (3, 3), 2, name="stem")(x)
        number = 0
        for count, features in zip(self.blocks, self.features, strict=True):
            for i in range(count):
                choice = None if self.choices is None else self.choices[number]
                x = Block(features, 2 if i == 0 else 1, choice, name=f"block_{number}")(x, choices[number])
                number += 1
        x = Conv(self.last, name="last")(x).mean(axis=(1, 2))
        return nn.Dense(self.classes, use_bias=False, name="head")(x)


def step(
    *,
    batch: int = 256,
    size: int = 224,
    blocks: tuple[int, ...] = (4, 4, 8, 4),
    features: tuple[int, ...] = (64, 160, 320, 640),
    stem: int = 16,
    last: int = 1024,
    classes: int = 1000,
    path: int = PATH,
    switched: bool = False,
    optimiser: optax.GradientTransformation = SGD,
) -> TrainingStep:
    """The supernet on one path.

    Args:
      batch: Images a step.
      size: Height and width of an image.
      blocks: Blocks of each stage.
      features: Channels of each stage.
      stem: Channels of the first convolution.
      last: Channels of the last convolution.
      classes: Classes.
      path: The path's number, of 4 to the power of all blocks.
      switched: One program for all paths: the choices are an argument, and a `switch` at each block follows them.
      optimiser: What makes updates of gradients.
    """
    chosen = choices_of(path, blocks=sum(blocks))
    model = Supernet(blocks, features, stem, last, classes, None if switched else chosen)

    def made(key: jax.Array) -> dict[str, jax.Array]:
        for_images, for_labels = jax.random.split(key)
        return {
            "images": jax.random.normal(for_images, (batch, size, size, 3)),
            "labels": jax.random.randint(for_labels, (batch,), 0, classes),
            "choices": jnp.array(chosen, jnp.int32),
        }

    def init(key: jax.Array, batch: Any) -> Mapping[str, Any]:
        return model.init(key, batch["images"], batch["choices"])

    def loss(variables: Mapping[str, Any], batch: Any) -> tuple[jax.Array, Mapping[str, Any]]:
        logits, changed = model.apply(variables, batch["images"], batch["choices"], mutable=["batch_stats"])
        return cross_entropy(logits, batch["labels"]), changed

    return training_step(init=init, loss=loss, batch=made, optimiser=optimiser)


def small() -> dict[str, Any]:
    """Arguments of `step` for a CPU."""
    return {"batch": 4, "size": 32, "blocks": (2, 2), "features": (16, 32), "stem": 8, "last": 32, "classes": 10}
