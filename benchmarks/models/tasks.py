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

DROPOUT = "dropout"
"""The name of Linen's stream of random bits for dropout, and of its key in a batch."""


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean over all labels, in float32."""
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels).mean()


def image_classifier(
    model: nn.Module,
    *,
    batch: int,
    size: int,
    classes: int,
    optimiser: optax.GradientTransformation,
    is_random: bool = False,
) -> TrainingStep:
    """The step of a model that maps (batch, size, size, 3) images to (batch, classes) logits.

    A model with dropout (`is_random`) draws its masks by a key that comes with each batch.
    """

    def made(key: jax.Array) -> dict[str, jax.Array]:
        for_images, for_labels = jax.random.split(key)
        return {
            "images": jax.random.normal(for_images, (batch, size, size, 3)),
            "labels": jax.random.randint(for_labels, (batch,), 0, classes),
            **({DROPOUT: key} if is_random else {}),
        }

    def init(key: jax.Array, batch: Any) -> Mapping[str, Any]:
        return model.init(key, batch["images"])

    def loss(variables: Mapping[str, Any], batch: Any) -> tuple[jax.Array, Mapping[str, Any]]:
        keys = {DROPOUT: batch[DROPOUT]} if is_random else {}
        logits, changed = model.apply(variables, batch["images"], mutable=["batch_stats"], rngs=keys)
        return cross_entropy(logits, batch["labels"]), changed

    return training_step(init=init, loss=loss, batch=made, optimiser=optimiser)


def language_model(
    model: nn.Module,
    *,
    batch: int,
    sequence: int,
    vocabulary: int,
    optimiser: optax.GradientTransformation,
    is_random: bool = False,
) -> TrainingStep:
    """The step of a model that maps (batch, sequence) tokens to the logits of the token after each.

    What the model sows into "losses" is added to the loss. A batch is an array of tokens; that of a model with dropout
    (`is_random`) is a pair of tokens and the key by which the model draws its masks.
    """

    def made(key: jax.Array) -> Any:
        tokens = jax.random.randint(key, (batch, sequence + 1), 0, vocabulary)
        return (tokens, key) if is_random else tokens

    def init(key: jax.Array, batch: Any) -> Mapping[str, Any]:
        tokens = batch[0] if is_random else batch
        return {"params": model.init(key, tokens[:, :-1])["params"]}

    def loss(variables: Mapping[str, Any], batch: Any) -> tuple[jax.Array, Mapping[str, Any]]:
        tokens, keys = (batch[0], {DROPOUT: batch[1]}) if is_random else (batch, {})
        logits, sown = model.apply(variables, tokens[:, :-1], mutable=["losses"], rngs=keys)
        return sum(jax.tree.leaves(sown), cross_entropy(logits, tokens[:, 1:])), {}

    return training_step(init=init, loss=loss, batch=made, optimiser=optimiser)
