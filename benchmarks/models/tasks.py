"""The two tasks that most of these models are trained for: to name an image, and to continue a text.

Read after `training`.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.models.training import TrainingStep, training_step


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean over all labels, in float32."""
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels).mean()


def image_classifier(
    model: nn.Module, *, batch: int, size: int, classes: int, optimiser: optax.GradientTransformation
) -> TrainingStep:
    """The step of a model that maps (batch, size, size, 3) images to (batch, classes) logits."""

    def made(key: jax.Array) -> dict[str, jax.Array]:
        for_images, for_labels = jax.random.split(key)
        return {
            "images": jax.random.normal(for_images, (batch, size, size, 3)),
            "labels": jax.random.randint(for_labels, (batch,), 0, classes),
        }

    def init(key: jax.Array, batch: Any) -> Mapping[str, Any]:
        return model.init(key, batch["images"])

    def loss(variables: Mapping[str, Any], batch: Any) -> tuple[jax.Array, Mapping[str, Any]]:
        logits, changed = model.apply(variables, batch["images"], mutable=["batch_stats"])
        return cross_entropy(logits, batch["labels"]), changed

    return training_step(init=init, loss=loss, batch=made, optimiser=optimiser)


def language_model(
    model: nn.Module, *, batch: int, sequence: int, vocabulary: int, optimiser: optax.GradientTransformation
) -> TrainingStep:
    """The step of a model that maps (batch, sequence) tokens to the logits of the token after each.

    What the model sows into "losses" is added to the loss.
    """

    def made(key: jax.Array) -> jax.Array:
        return jax.random.randint(key, (batch, sequence + 1), 0, vocabulary)

    def init(key: jax.Array, tokens: jax.Array) -> Mapping[str, Any]:
        return {"params": model.init(key, tokens[:, :-1])["params"]}

    def loss(variables: Mapping[str, Any], tokens: jax.Array) -> tuple[jax.Array, Mapping[str, Any]]:
        logits, sown = model.apply(variables, tokens[:, :-1], mutable=["losses"])
        return sum(jax.tree.leaves(sown), cross_entropy(logits, tokens[:, 1:])), {}

    return training_step(init=init, loss=loss, batch=made, optimiser=optimiser)
