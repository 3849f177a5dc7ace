"""What every file of the zoo hands over: a step with concrete arguments, in one of a few sizes.

No library but jax is imported here, so that tests which need no model of the zoo do not pay for Flax.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A step with concrete arguments, as its author would call it.

    Attributes:
      step: The step, plain or jitted already.
      args: Arrays, key arrays, Python numbers, None, and pytrees of these; what is static stands among them.
      donate_argnums: What the author would donate, besides what a jitted step donates itself.
      static_argnums: What the author would declare static, besides what a jitted step declares itself.
    """

    step: Callable[..., Any]
    args: tuple[Any, ...]
    donate_argnums: tuple[int, ...] = ()
    static_argnums: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a model is; each family takes from it what it has."""

    batch: int
    length: int
    width: int
    heads: int
    depth: int
    vocabulary: int


SIZES = MappingProxyType(
    {
        "tiny": Size(batch=2, length=8, width=16, heads=2, depth=4, vocabulary=32),
        # Activations outweigh parameters, so that there is something to plan.
        "small": Size(batch=8, length=128, width=64, heads=4, depth=4, vocabulary=256),
    }
)


_NO_EFFORT = {"xla_backend_optimization_level": 0} | (
    # jax < 0.11: takes two thirds of what remains; XLA has lost the option since.
    {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {}
)

quick_jit = partial(jax.jit, compiler_options=_NO_EFFORT)
"""`jax.jit` for what runs once, on the CPU: LLVM's effort is most of the time that a small step takes to compile."""


def numbers(case: Case) -> list[np.ndarray]:
    """The flat results of a case's jitted step, keys as their data; the case's own arguments are never donated away."""
    step = case.step if is_jitted(case.step) else quick_jit(case.step, static_argnums=case.static_argnums)
    args = (arg if i in case.static_argnums else fresh(arg) for i, arg in enumerate(case.args))
    return [as_numpy(leaf) for leaf in jax.tree.leaves(step(*args))]


def as_numpy(leaf: Any) -> np.ndarray:
    """An array as numpy sees it; of a typed key its data."""
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a typed key array."""
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def is_jitted(step: Callable[..., Any]) -> bool:
    """Whether a step was jitted by its author."""
    return hasattr(step, "lower")


def fresh(tree: Any) -> Any:
    """The same tree with arrays of its own, so that a step which donates does not take the caller's."""
    return jax.tree.map(lambda leaf: jnp.copy(leaf) if isinstance(leaf, jax.Array) else leaf, tree)


def weight(draw: np.random.Generator, *shape: int) -> jax.Array:
    """A random f32 weight of variance 1/fan-in, the last axis being the output's."""
    return jnp.asarray(draw.normal(scale=np.prod(shape[:-1]) ** -0.5, size=shape), jnp.float32)


def normal(draw: np.random.Generator, *shape: int) -> jax.Array:
    """Random f32 data."""
    return jnp.asarray(draw.normal(size=shape), jnp.float32)


def integers(draw: np.random.Generator, below: int, *shape: int) -> jax.Array:
    """Random i32 data: tokens, labels."""
    return jnp.asarray(draw.integers(below, size=shape), jnp.int32)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean negative log-likelihood of integer labels, in f32."""
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.mean(jnp.take_along_axis(log_probabilities, labels[..., None], axis=-1))


def descend(params: Any, gradients: Any, *, rate: float = 0.1) -> Any:
    """Plain gradient descent over any tree."""
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients)
