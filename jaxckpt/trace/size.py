"""How many bytes a value takes on one device.

Arguments are counted by their shardings; a value behind a sharding constraint by that constraint, a value whose type
carries a sharding (explicit mode) by that, and what the compiler will split on its own by `split`. Key arrays count as
the words that they are made of.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

_BITS = 8
"""Bits of a byte."""


def aval_bytes(aval: Any, sharding: Any = None) -> int:
    """Bytes of an abstract value on one device; 0 for tokens.

    Args:
      aval: An abstract array, a reference to one, or a token.
      sharding: How it is sharded, if its type does not say.
    """
    aval = getattr(aval, "inner_aval", aval)
    if not hasattr(aval, "shape"):
        return 0
    sharding = sharding if sharding is not None else getattr(aval, "sharding", None)
    return -(-math.prod(_shard_shape(aval.shape, sharding)) * dtype_bits(aval.dtype) // _BITS)


def split_bytes(aval: Any, ways: Sequence[int]) -> int:
    """Bytes of an array on one device, its dimensions split over so many devices each; padded, as the compiler does.

    Example:
      >>> split_bytes(jax.ShapeDtypeStruct((5, 8), "float32"), (2, 4))
      24
    """
    shard = (-(-size // parts) for size, parts in zip(aval.shape, ways, strict=True))
    return -(-math.prod(shard) * dtype_bits(aval.dtype) // _BITS)


def _shard_shape(shape: tuple[int, ...], sharding: Any) -> tuple[int, ...]:
    """The largest shard; dimensions that do not divide are padded, as the compiler does."""
    if not isinstance(sharding, jax.sharding.NamedSharding):
        return tuple(sharding.shard_shape(shape)) if sharding is not None else shape
    parts = (*sharding.spec, *(None for _ in range(len(shape) - len(sharding.spec))))
    return tuple(-(-size // _axis_size(sharding.mesh, part)) for size, part in zip(shape, parts, strict=True))


def _axis_size(mesh: Any, part: Any) -> int:
    axes = part if isinstance(part, tuple) else (part,)
    return math.prod(mesh.shape[axis] for axis in axes if isinstance(axis, str))


@functools.lru_cache(maxsize=1024)
def dtype_bits(dtype: Any) -> int:
    """Bits of one element as the compiler stores it: a bool is a byte, an int4 half of one, a float0 nothing."""
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        if not jnp.issubdtype(dtype, jax.dtypes.prng_key):
            return 0
        words = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), dtype))
        return math.prod(words.shape) * dtype_bits(words.dtype)
    if dtype == jnp.bool_ or dtype == jax.dtypes.float0:
        return dtype.itemsize * _BITS
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).bits
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.finfo(dtype).bits
    return dtype.itemsize * _BITS
