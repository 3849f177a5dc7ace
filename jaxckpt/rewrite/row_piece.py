"""The equations of a region of rows at the size of one piece.

Each equation is traced anew with the shapes of a piece, under its own name stack. Values with rows that the region only
reads are sliced, from where the piece begins. Read after `rows.region`, before `chunk_rows`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax

from jaxckpt.program.flat_program import Atom, FlatProgram, open_jaxpr, renamed
from jaxckpt.rows.axis import RowAxis
from jaxckpt.rows.region import RowRegion
from jaxckpt.rows.rules import RowFlow, elementwise_body

_NARROW = ("bfloat16", "float16")


def accumulator_dtype(dtype: Any) -> Any:
    """The type in which a sum over pieces is kept: float32 for narrower floats, else its own."""
    return jnp.dtype("float32") if jnp.dtype(dtype).name in _NARROW else dtype


class PieceWriter:
    """Writes the equations of a piece.

    Attributes:
      number: The variable of the piece's number, from 0.
      eqns: What has been written.
      names: For each value of the region the variable of its piece, or of its sum over the rows of the piece.
    """

    def __init__(self, region: RowRegion, pieces: int) -> None:
        self.region = region
        self.rows = region.rows // pieces
        self.number = jex.Var(jax.core.ShapedArray((), jnp.dtype("int32")))
        self.eqns: list[jex.JaxprEqn] = []
        self.names: dict[jex.Var, jex.Var] = {}
        self._slices: dict[tuple[Atom, RowAxis], jex.Var] = {}

    def write(self, eqn: jex.JaxprEqn, flow: RowFlow) -> None:
        """Writes the piece of an equation of the region."""
        reads = [
            atom if axis is None else self._piece(atom, axis, eqn)
            for atom, axis in zip(eqn.invars, flow.operands, strict=True)
        ]
        params = piece_params(eqn, flow, self.rows)
        rows_of_indices = flow.operands[1] if flow.index_column is not None else None
        dtype = accumulator_dtype(eqn.outvars[0].aval.dtype) if flow.is_sum else None
        if flow.is_sum and "preferred_element_type" in params:
            params["preferred_element_type"] = dtype

        def piece(*operands: jax.Array) -> Any:
            own = list(operands)
            if flow.index_column is not None and rows_of_indices is not None:
                number = own.pop()
                own[1] = self._local_indices(own[1], flow.index_column, rows_of_indices, number)
            if dtype is not None and eqn.primitive.name == "reduce_sum":
                own[0] = own[0].astype(dtype)
            if (body := elementwise_body(eqn)) is not None:
                return _evaluated(body, own, eqn, flow.results[0], self.rows)
            return eqn.primitive.bind(*own, **eqn.primitive.get_bind_params(params))

        extra = [self.number] if flow.index_column is not None else []
        self.names.update(zip(eqn.outvars, self._traced(piece, [*reads, *extra], eqn), strict=True))

    def _piece(self, atom: Atom, axis: RowAxis, eqn: jex.JaxprEqn) -> Atom:
        """The piece of an operand with rows: what the region computed, or a slice of what it reads."""
        if atom in self.names:
            return self.names[atom]
        if (atom, axis) not in self._slices:
            rows, all_rows = self.rows, self.region.rows

            def sliced(array: jax.Array, number: jax.Array) -> jax.Array:
                apart = array.reshape(axis.separated(array.shape, all_rows))
                length = rows * axis.inner
                part = lax.dynamic_slice_in_dim(apart, number * length, length, axis=axis.dimension + 1)
                return part.reshape(axis.resized(array.shape, rows))

            (self._slices[atom, axis],) = self._traced(sliced, [atom, self.number], eqn)
        return self._slices[atom, axis]

    def _local_indices(self, indices: jax.Array, column: int, axis: RowAxis, number: jax.Array) -> jax.Array:
        """Indices whose column of row numbers counts from where the piece begins."""
        all_rows, rows = self.region.rows, self.rows
        element = indices[..., column]
        row = element // axis.inner
        first = (number * rows).astype(indices.dtype)
        local = (row // all_rows * rows + row % all_rows - first) * axis.inner + element % axis.inner
        return indices.at[..., column].set(local)

    def _traced(self, function: Callable[..., Any], reads: Sequence[Atom], source: jex.JaxprEqn) -> Sequence[jex.Var]:
        """Writes the equations of a function, with the source of the equation that it is for; returns its results."""
        jaxpr = open_jaxpr(jax.make_jaxpr(function)(*(atom.aval for atom in reads)))
        names: dict[jex.Var, Atom] = dict(zip(jaxpr.invars, reads, strict=True))
        for eqn in jaxpr.eqns:
            writes = [jex.Var(v.aval) for v in eqn.outvars]
            reads = [renamed(atom, names) for atom in eqn.invars]
            names.update(zip(eqn.outvars, writes, strict=True))
            self.eqns.append(eqn.replace(invars=reads, outvars=writes, source_info=source.source_info, ctx=source.ctx))
        return [renamed(atom, names) for atom in jaxpr.outvars]


def _evaluated(
    body: FlatProgram, operands: Sequence[jax.Array], eqn: jex.JaxprEqn, axis: RowAxis | None, rows: int
) -> list[Any]:
    """The results of a call with an elementwise body."""
    values: dict[jex.Var, Any] = dict(zip(body.invars, operands, strict=True)) | dict(body.constants)
    for each in (equation.eqn for equation in body.equations):
        params = dict(each.params)
        if each.primitive.name == "broadcast_in_dim" and axis is not None:
            params["shape"] = axis.resized(eqn.outvars[0].aval.shape, rows)
        reads = [atom.val if isinstance(atom, jex.Literal) else values[atom] for atom in each.invars]
        results = each.primitive.bind(*reads, **each.primitive.get_bind_params(params))
        values.update(zip(each.outvars, results if each.primitive.multiple_results else [results], strict=True))
    return [atom.val if isinstance(atom, jex.Literal) else values[atom] for atom in body.outvars]


def piece_params(eqn: jex.JaxprEqn, flow: RowFlow, rows: int) -> dict[str, Any]:
    """The parameters of an equation for a piece of so many rows: shapes in them are those of the piece."""
    params = dict(eqn.params)
    name = eqn.primitive.name
    axis = flow.results[0]
    if name in _RESULT_SHAPE and axis is not None:
        params[_RESULT_SHAPE[name]] = axis.resized(eqn.outvars[0].aval.shape, rows)
    own = flow.operands[0] if flow.operands else None
    if own is None:
        return params
    length = own.outer * rows * own.inner
    for sizes in _OPERAND_SIZES:
        if sizes in params and params[sizes][own.dimension] == eqn.invars[0].aval.shape[own.dimension]:
            params[sizes] = _with(params[sizes], own.dimension, length)
    return params


_OPERAND_SIZES = ("limit_indices", "slice_sizes")
"""Parameters of slices and gathers that have a size for each dimension of the operand."""
_RESULT_SHAPE = {"broadcast_in_dim": "shape", "iota": "shape", "reshape": "new_sizes"}


def _with(sizes: Sequence[int], dimension: int, length: int) -> tuple[int, ...]:
    return (*sizes[:dimension], length, *sizes[dimension + 1 :])
