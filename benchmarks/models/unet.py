"""U-Net, float32, SGD with momentum: 31 million parameters.

Ronneberger, Fischer and Brox 2015, figure 1, without normalisation as there. Convolutions are padded, so that every
pixel is labelled; where an odd side was halved, a row of zeros is added on the way up.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.models.blocks import Remat, as_written
from benchmarks.models.tasks import cross_entropy
from benchmarks.models.training import TrainingStep, training_step

OPTIMISER = optax.sgd(0.01, momentum=0.99)
"""The paper's momentum."""


class Pair(nn.Module):
    """Two convolutions of 3 x 3, each with ReLU."""

    features: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(2):
            x = nn.relu(nn.Conv(self.features, (3, 3), kernel_init=nn.initializers.he_normal())(x))
        return x


class UNet(nn.Module):
    """Down, down, down, and up again beside what was seen on the way."""

    width: int
    depth: int
    classes: int
    remat: Remat

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        seen, pair = [], self.remat(Pair)
        for i in range(self.depth):
            seen.append(pair(self.width * 2**i, name=f"down_{i}")(x))
            x = nn.max_pool(seen[-1], (2, 2), strides=(2, 2))
        x = pair(self.width * 2**self.depth, name="bottom")(x)
        for i in reversed(range(self.depth)):
            x = nn.ConvTranspose(self.width * 2**i, (2, 2), strides=(2, 2), name=f"widen_{i}")(x)
            x = pair(self.width * 2**i, name=f"up_{i}")(jnp.concatenate([seen[i], as_large(x, seen[i])], axis=-1))
        return nn.Conv(self.classes, (1, 1), name="head")(x)


def as_large(x: jax.Array, other: jax.Array) -> jax.Array:
    """Adds rows and columns of zeros, one at most of each, up to the size of another."""
    rows, columns = other.shape[1] - x.shape[1], other.shape[2] - x.shape[2]
    return jnp.pad(x, ((0, 0), (0, rows), (0, columns), (0, 0))) if rows or columns else x


def step(
    *,
    batch: int = 5,
    height: int = 460,
    across: int = 608,
    channels: int = 3,
    width: int = 64,
    depth: int = 4,
    classes: int = 2,
    optimiser: optax.GradientTransformation = OPTIMISER,
    remat: Remat = as_written,
) -> TrainingStep:
    """U-Net, or another size of it.

    Args:
      batch: Images a step.
      height: Rows of an image.
      across: Columns of an image.
      channels: Colours of an image.
      width: Channels at full size.
      depth: How often the image is halved.
      classes: Classes of a pixel.
      optimiser: What makes updates of gradients.
      remat: Applied to each pair of convolutions, before it is called; see `blocks`.
    """
    model = UNet(width, depth, classes, remat)

    def made(key: jax.Array) -> dict[str, jax.Array]:
        for_images, for_labels = jax.random.split(key)
        return {
            "images": jax.random.normal(for_images, (batch, height, across, channels)),
            "labels": jax.random.randint(for_labels, (batch, height, across), 0, classes),
        }

    def init(key: jax.Array, batch: Any) -> Mapping[str, Any]:
        return model.init(key, batch["images"])

    def loss(variables: Mapping[str, Any], batch: Any) -> tuple[jax.Array, Mapping[str, Any]]:
        return cross_entropy(model.apply(variables, batch["images"]), batch["labels"]), {}

    return training_step(init=init, loss=loss, batch=made, optimiser=optimiser)


def small() -> dict[str, Any]:
    """Arguments of `step` for a CPU."""
    return {"batch": 2, "height": 22, "across": 16, "width": 4, "depth": 2}
