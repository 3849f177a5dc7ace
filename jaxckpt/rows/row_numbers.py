"""Indices that are row numbers: `logits[jnp.arange(n), labels]` reads from row i at position i.

A gather with such a column of indices treats rows alike, though it could read any row. The proof follows the producers
of the column back to an `iota`.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np

from jaxckpt.program.flat_program import Atom, Equation, FlatProgram

_UNCHANGED = frozenset({"copy", "copy_p", "stop_gradient", "name"})


class RowNumbers:
    """Finds arrays whose elements are their own coordinate along a dimension."""

    def __init__(self, program: FlatProgram) -> None:
        self._producers: dict[jex.Var, Equation] = {v: e for e in program.equations for v in e.eqn.outvars}
        self._constants: Mapping[jex.Var, Any] = dict(program.constants)

    def dimension_of_column(self, indices: Atom, column: int) -> int | None:
        """The dimension along which a column of an index array, whose last dimension has the columns, counts."""
        columns = indices.aval.shape[-1]
        if columns == 1:
            return self._dimension(indices)
        producer = self._producers.get(indices) if isinstance(indices, jex.Var) else None
        if producer is None or producer.eqn.primitive.name != "concatenate":
            return None
        if producer.eqn.params["dimension"] != len(indices.aval.shape) - 1:
            return None
        first = 0
        for operand in producer.eqn.invars:
            if first == column and operand.aval.shape[-1] == 1:
                return self._dimension(operand)
            first += operand.aval.shape[-1]
        return None

    def _dimension(self, atom: Atom) -> int | None:
        """The dimension whose coordinate the elements are; None where that is not proved."""
        if not isinstance(atom, jex.Var):
            return None
        if atom in self._constants:
            return _counts(self._constants[atom])
        producer = self._producers.get(atom)
        if producer is None:
            return None
        eqn = producer.eqn
        match eqn.primitive.name:
            case "iota":
                return _within_range(int(eqn.params["dimension"]), eqn)
            case "convert_element_type":
                own = self._dimension(eqn.invars[0])
                return None if own is None else _within_range(own, eqn)
            case "broadcast_in_dim":
                own = self._dimension(eqn.invars[0])
                return None if own is None else _broadcast(own, eqn)
            case "reshape":
                own = self._dimension(eqn.invars[0])
                return None if own is None else _reshaped(own, eqn)
            case "select_n" if self._is_normalisation(eqn):
                return self._dimension(eqn.invars[1])
            case name if name in _UNCHANGED:
                return self._dimension(eqn.invars[0])
        return None

    def _is_normalisation(self, eqn: jex.JaxprEqn) -> bool:
        """True for `where(i < 0, i + n, i)`, which leaves coordinates as they are: none is negative."""
        is_negative, kept = eqn.invars[:2]
        test = self._producers.get(is_negative) if isinstance(is_negative, jex.Var) else None
        if test is None or test.eqn.primitive.name != "lt":
            return False
        tested, bound = test.eqn.invars
        return tested is kept and isinstance(bound, jex.Literal) and bool(np.all(np.asarray(bound.val) == 0))


def _counts(constant: Any) -> int | None:
    if isinstance(constant, jax.core.Tracer) or getattr(constant, "ndim", None) != 1:
        return None
    if not np.issubdtype(constant.dtype, np.integer):
        return None
    return 0 if np.array_equal(np.asarray(constant), np.arange(constant.shape[0])) else None


def _within_range(dimension: int, eqn: jex.JaxprEqn) -> int | None:
    """The dimension, if the result's type has all its coordinates: those of 512 rows wrap in uint8."""
    aval = eqn.outvars[0].aval
    is_integer = np.issubdtype(aval.dtype, np.integer)
    return dimension if is_integer and aval.shape[dimension] - 1 <= np.iinfo(aval.dtype).max else None


def _broadcast(dimension: int, eqn: jex.JaxprEqn) -> int | None:
    place = int(eqn.params["broadcast_dimensions"][dimension])
    kept = eqn.invars[0].aval.shape[dimension] == eqn.outvars[0].aval.shape[place]
    return place if kept else None


def _reshaped(dimension: int, eqn: jex.JaxprEqn) -> int | None:
    """The dimension after a reshape that only adds and removes dimensions of length 1."""
    old = [i for i, length in enumerate(eqn.invars[0].aval.shape) if length != 1]
    new = [i for i, length in enumerate(eqn.outvars[0].aval.shape) if length != 1]
    lengths = ([array.aval.shape[i] for i in kept] for array, kept in ((eqn.invars[0], old), (eqn.outvars[0], new)))
    same = next(lengths) == next(lengths)
    return new[old.index(dimension)] if same and dimension in old else None
