"""Difference of two arrays, NaN and infinity included.

All arithmetic is numpy's, in double precision, on the host: the comparison must not share the rounding of the compared
steps.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxckpt.verifier.verification import LeafDifference, Tolerance

_UPDATE = 0.1
"""A result that is closer to an argument, as a share of its largest magnitude, is that argument updated."""


def difference(
    path: str,
    step: jax.Array | np.ndarray,
    planned: jax.Array | np.ndarray,
    tolerance: Tolerance,
    *,
    start: jax.Array | None = None,
) -> LeafDifference:
    """Compares one result of two steps, element by element; keys by their data.

    `start` is the argument of the same shape and type that the result may be an update of.

    Example:
      >>> found = difference("[0]", np.float32([1, 0, 4]), np.float32([1, 0, 5]), Tolerance(relative=0.1, absolute=0))
      >>> found.differing, found.max_absolute, found.max_relative, found.ok
      (1, 1.0, 0.25, False)
    """
    one, other = _on_host(step), _on_host(planned)
    wide_one, wide_other = _wide(one), _wide(other)
    same = (wide_one == wide_other) | (np.isnan(wide_one) & np.isnan(wide_other))
    finite = np.isfinite(wide_one) & np.isfinite(wide_other)
    gap = np.abs(np.subtract(wide_other, wide_one, where=finite, out=np.zeros_like(wide_one)))
    magnitude = np.abs(_finite(wide_one))
    share = np.divide(gap, magnitude, where=magnitude > 0, out=np.zeros_like(gap))
    return LeafDifference(
        path=path,
        shape=tuple(step.shape),
        dtype=str(step.dtype),
        tolerance=tolerance,
        differing=int(np.sum(~same)),
        max_absolute=float(gap.max(initial=0)),
        max_relative=float(share.max(initial=0)),
        largest=float(magnitude.max(initial=0)),
        scale=_scale(wide_one, start),
        unit=_unit(one.dtype),
        not_finite=int(np.sum(~np.isfinite(wide_one))),
        not_finite_differing=int(np.sum(~same & ~finite)),
        bit_equal=one.tobytes() == other.tobytes(),
    )


def _unit(dtype: np.dtype) -> float:
    finfo: Any = jnp.finfo  # untyped in some versions of jax
    return float(finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.inexact) else 0.0


def _scale(result: np.ndarray, start: jax.Array | None) -> float:
    """The largest change from a start that is not far; otherwise the largest magnitude."""
    largest = _largest(result)
    change = largest if start is None else _largest(_finite(result) - _finite(_wide(_on_host(start))))
    return change if 0 < change < _UPDATE * largest else largest


def _largest(array: np.ndarray) -> float:
    return float(np.abs(_finite(array)).max(initial=0))


def _finite(array: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(array), array, 0)


def _on_host(array: jax.Array | np.ndarray) -> np.ndarray:
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.asarray(array)


def _wide(array: np.ndarray) -> np.ndarray:
    """In numbers that hold every value of the array's type, but for integers beyond 2**53."""
    wide: np.ndarray = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    return wide
