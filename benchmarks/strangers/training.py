"""Arguments as descriptions, and training steps made of a loss: what every family of the battery is written with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxckpt import Step

ADAM = optax.adam(1e-3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A way to build steps of one kind.

    Attributes:
      family: The kind of network or training.
      build: Makes the step. It takes sizes, with full ones as defaults, and `wrap`, which it applies to its block.
      small: Sizes of a step that a CPU runs in a second.
      choices: Values to draw from, by the name of a size.
      draws: Number of steps to draw.
    """

    family: str
    build: Callable[..., Step]
    small: dict[str, Any]
    choices: dict[str, Sequence[Any]] = field(default_factory=dict)
    draws: int = 1


def as_written(block: Callable[..., Any], *, in_loop: bool = False) -> Callable[..., Any]:  # noqa: ARG001
    """The default of `wrap`: the block without a mark; `in_loop` is True for the body of a scan."""
    return block


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """A description of an array."""
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def integers(*shape: int) -> jax.ShapeDtypeStruct:
    """A description of indices."""
    return array(*shape, dtype=jnp.int32)


def random_key() -> Any:
    """A description of a random key."""
    return jax.eval_shape(lambda: jax.random.key(0))


def stacked(weights: Any, count: int) -> Any:
    """Descriptions with a leading dimension, as `lax.scan` reads the weights of layers."""
    return jax.tree.map(lambda leaf: array(count, *leaf.shape, dtype=leaf.dtype), weights)


def gradient_step(loss: Callable[..., jax.Array], weights: Any, *batch: Any) -> Step:
    """Loss and gradients, without an update."""
    return Step(jax.value_and_grad(loss), (weights, *batch))


def descent_step(loss: Callable[..., jax.Array], weights: Any, *batch: Any) -> Step:
    """Loss, gradients and plain gradient descent."""

    def step(weights: Any, *batch: Any) -> tuple[Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(weights, *batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value

    return Step(step, (weights, *batch), donate_argnums=0)


def training_step(loss: Callable[..., jax.Array], weights: Any, *batch: Any) -> Step:
    """Loss, gradients and an update by Adam."""

    def step(weights: Any, state: Any, *batch: Any) -> tuple[Any, Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(weights, *batch)
        updates, state = ADAM.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, value

    state = jax.eval_shape(ADAM.init, weights)
    return Step(step, (weights, state, *batch), donate_argnums=(0, 1))
