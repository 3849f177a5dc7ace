"""Steps as small as they come: for each lint one that has what it looks for, and its corrected twin."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from jaxckpt.linter import Findings, lint

WEIGHT = jax.ShapeDtypeStruct((8, 8), jnp.float32)
BATCH = jax.ShapeDtypeStruct((4, 8), jnp.float32)
LAYERS = jax.ShapeDtypeStruct((3, 8, 8), jnp.float32)
MESH = AbstractMesh((2,), ("data",), axis_types=(AxisType.Auto,))
POLICIES = jax.checkpoint_policies


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What a lint is tried on.

    Attributes:
      code: Of the lint.
      bad: Gives the findings of the step that has it.
      good: Gives those of the corrected step.
      text: A part of the finding's text.
    """

    code: str
    bad: Callable[[], Findings]
    good: Callable[[], Findings]
    text: str = ""

    def __str__(self) -> str:
        return self.code


def spec(*shape: int, axes: tuple[str | None, ...] | None = None, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """An array of a shape; with axes, laid out over two devices."""
    sharding = None if axes is None else NamedSharding(MESH, PartitionSpec(*axes))
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def stacked(*blocks: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of blocks, one after the other, with a product behind the last."""

    def loss(w, x, *more):
        for block in blocks:
            x = block(w, x, *more)
        return ((x @ w) ** 2).sum()

    return jax.grad(loss)


def block(w, x):
    return jnp.tanh(jnp.sin(x @ w) @ w)


def found(step: Callable[..., Any], *args: Any, **options: Any) -> Callable[[], Findings]:
    """Lints a step when it is called."""
    return lambda: lint(step, *(args or (WEIGHT, BATCH)), **options)
