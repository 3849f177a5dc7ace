"""How the rows of operands and results of one equation belong together.

Each primitive links dimensions of its operands and results, as the sharding rules of Shardy and the named dimensions of
an einsum do: element i along one of them depends on elements i along the others alone. A link whose dimensions are not
in the result is a sum over them. A dimension without a link is computed with all of its elements at once: a sort, a
maximum, a convolution's window. Complexity: linear in the dimensions of an equation.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax.extend.core as jex

from jaxckpt.ir import Kind, kind_of
from jaxckpt.program.flat_program import FlatProgram
from jaxckpt.program.inline import CUSTOM_DERIVATIVES, called_jaxpr, inline
from jaxckpt.rows.axis import RowAxis
from jaxckpt.rows.row_numbers import RowNumbers

READ, WRITTEN = "operand", "result"
_Place = tuple[str, int, int]
"""Side, position among operands or results, dimension."""


class RowsMixedError(Exception):
    """The rows of a value do not stay apart; the text is a reason for users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Dimensions that belong together: place by place.

    Attributes:
      places: Operands' and results' dimensions.
      is_sum: True if the result is a sum over them.
      index_column: For a gather or scatter whose indices have the row number in a column, that column.
    """

    places: tuple[_Place, ...]
    is_sum: bool = False
    index_column: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFlow:
    """The rows of one equation: for each operand and result its row axis, None for a value without rows.

    Attributes:
      operands: In operand order.
      results: In result order.
      is_sum: True if the results are sums over the rows.
      index_column: As in `Link`.
    """

    operands: tuple[RowAxis | None, ...]
    results: tuple[RowAxis | None, ...]
    is_sum: bool = False
    index_column: int | None = None


def flow_through(eqn: jex.JaxprEqn, side: str, position: int, axis: RowAxis, rows: int, numbers: RowNumbers) -> RowFlow:
    """The rows of all operands and results, given those of one operand or result.

    Raises:
      RowsMixedError: The equation does not compute each row by itself.
    """
    name = eqn.primitive.name
    if name == "reshape":
        return _through_reshape(eqn, side, axis, rows)
    links = _links(eqn, numbers)
    if links is None:
        raise RowsMixedError(f"{called(eqn)} is computed for all rows at once")
    link = next((each for each in links if (side, position, axis.dimension) in each.places), None)
    if link is None or (link.is_sum and name not in SUMS):
        raise RowsMixedError(f"{called(eqn)} mixes rows")
    places = {(where, which): axis.at(dimension) for where, which, dimension in link.places}
    return RowFlow(
        operands=tuple(places.get((READ, i)) for i in range(len(eqn.invars))),
        results=tuple(places.get((WRITTEN, i)) for i in range(len(eqn.outvars))),
        is_sum=link.is_sum,
        index_column=link.index_column,
    )


SUMS = frozenset({"reduce_sum", "dot_general", "conv_general_dilated"})
"""Primitives whose sums over rows can be taken piece by piece."""


def called(eqn: jex.JaxprEqn) -> str:
    """An equation in a message: its primitive and the shape of its result."""
    result = eqn.outvars[0].aval if eqn.outvars else None
    shape = "" if result is None else f" ({getattr(result, 'str_short', lambda: result)()})"
    return f"{eqn.primitive.name}{shape}"


def _through_reshape(eqn: jex.JaxprEqn, side: str, axis: RowAxis, rows: int) -> RowFlow:
    old, new = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    before, after = (old, new) if side == READ else (new, old)
    other = axis.reshaped(before, after, rows) if eqn.params.get("dimensions") is None else None
    if other is None:
        raise RowsMixedError(f"{called(eqn)} spreads rows over several dimensions")
    pair = (axis, other) if side == READ else (other, axis)
    return RowFlow(operands=(pair[0],), results=(pair[1],))


def _links(eqn: jex.JaxprEqn, numbers: RowNumbers) -> list[Link] | None:
    """The links of an equation; None for a primitive without a rule."""
    name = eqn.primitive.name
    if name == "gather" or name in _SCATTERS:
        return list(_of_indexed(eqn, numbers))
    if rule := _RULES.get(name):
        return list(rule(eqn))
    if kind_of(name) is Kind.ELEMENTWISE or name in _UNCHANGED or elementwise_body(eqn) is not None:
        return list(_of_elementwise(eqn))
    return None


def elementwise_body(eqn: jex.JaxprEqn) -> FlatProgram | None:
    """The body of a call with a derivative rule of its own, if it is elementwise; else None.

    Its equations have no shapes in their parameters but for scalars that they broadcast.
    """
    if eqn.primitive.name not in CUSTOM_DERIVATIVES or (body := called_jaxpr(eqn.params)) is None:
        return None
    program = inline(body, inline_custom=True)
    shape = eqn.outvars[0].aval.shape
    return program if all(_is_elementwise(each.eqn, shape) for each in program.equations) else None


def _is_elementwise(eqn: jex.JaxprEqn, shape: tuple[int, ...]) -> bool:
    name = eqn.primitive.name
    if name == "broadcast_in_dim":
        return not eqn.invars[0].aval.shape and eqn.outvars[0].aval.shape == shape
    same = all(atom.aval.shape in ((), shape) for atom in (*eqn.invars, *eqn.outvars))
    return same and name not in _RULES and (kind_of(name) is Kind.ELEMENTWISE or name in _UNCHANGED)


_UNCHANGED = frozenset({"copy", "copy_p", "stop_gradient", "name", "reduce_precision"})
_SCATTERS = frozenset(
    {"scatter", "scatter-add", "scatter_add", "scatter-sub", "scatter_mul", "scatter_min", "scatter_max"}
)


def _linked(*places: _Place, is_sum: bool = False, index_column: int | None = None) -> Link:
    return Link(places=places, is_sum=is_sum, index_column=index_column)


def _of_elementwise(eqn: jex.JaxprEqn, without: Sequence[int] = ()) -> Iterator[Link]:
    """Every dimension stays where it is; operands of another rank are scalars, a length of 1 is broadcast."""
    shape = eqn.outvars[0].aval.shape
    arrays = [i for i, atom in enumerate(eqn.invars) if atom.aval.shape]
    if any(len(eqn.invars[i].aval.shape) != len(shape) for i in arrays):
        return
    for dimension, length in enumerate(shape):
        if dimension not in without:
            reads = ((READ, i, dimension) for i in arrays if eqn.invars[i].aval.shape[dimension] == length)
            yield _linked(*reads, *((WRITTEN, i, dimension) for i in range(len(eqn.outvars))))


def _of_dot_general(eqn: jex.JaxprEqn) -> Iterator[Link]:
    (left_summed, right_summed), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    result = 0
    for left, right in zip(left_batch, right_batch, strict=True):
        yield _linked((READ, 0, left), (READ, 1, right), (WRITTEN, 0, result))
        result += 1
    for operand, bound in enumerate(((*left_batch, *left_summed), (*right_batch, *right_summed))):
        for dimension in range(len(eqn.invars[operand].aval.shape)):
            if dimension not in bound:
                yield _linked((READ, operand, dimension), (WRITTEN, 0, result))
                result += 1
    for left, right in zip(left_summed, right_summed, strict=True):
        yield _linked((READ, 0, left), (READ, 1, right), is_sum=True)


def _of_convolution(eqn: jex.JaxprEqn) -> Iterator[Link]:
    numbers, params = eqn.params["dimension_numbers"], eqn.params
    if params["batch_group_count"] != 1 or params["feature_group_count"] != 1:
        return
    yield _linked((READ, 0, numbers.lhs_spec[0]), (WRITTEN, 0, numbers.out_spec[0]))
    yield _linked((READ, 1, numbers.rhs_spec[0]), (WRITTEN, 0, numbers.out_spec[1]))
    yield _linked((READ, 0, numbers.lhs_spec[1]), (READ, 1, numbers.rhs_spec[1]), is_sum=True)


def _of_reduction(eqn: jex.JaxprEqn) -> Iterator[Link]:
    axes = eqn.params["axes"]
    kept = [d for d in range(len(eqn.invars[0].aval.shape)) if d not in axes]
    for place, dimension in enumerate(kept):
        yield _linked((READ, 0, dimension), (WRITTEN, 0, place))
    if eqn.primitive.name == "reduce_sum":
        yield from (_linked((READ, 0, dimension), is_sum=True) for dimension in axes)


def _of_broadcast(eqn: jex.JaxprEqn) -> Iterator[Link]:
    """A new dimension, or one that was of length 1, has no place in the operand."""
    old, new = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    source = {int(place): own for own, place in enumerate(eqn.params["broadcast_dimensions"])}
    for dimension, length in enumerate(new):
        own = source.get(dimension)
        copied = own is not None and old[own] == length
        yield _linked(*([(READ, 0, own)] if copied else []), (WRITTEN, 0, dimension))


def _of_iota(eqn: jex.JaxprEqn) -> Iterator[Link]:
    yield from (_linked((WRITTEN, 0, d)) for d in range(len(eqn.params["shape"])) if d != eqn.params["dimension"])


def _of_transpose(eqn: jex.JaxprEqn) -> Iterator[Link]:
    for place, dimension in enumerate(eqn.params["permutation"]):
        yield _linked((READ, 0, int(dimension)), (WRITTEN, 0, place))


def _of_squeeze(eqn: jex.JaxprEqn) -> Iterator[Link]:
    kept = (d for d in range(len(eqn.invars[0].aval.shape)) if d not in eqn.params["dimensions"])
    yield from (_linked((READ, 0, dimension), (WRITTEN, 0, place)) for place, dimension in enumerate(kept))


def _of_same_lengths(eqn: jex.JaxprEqn) -> Iterator[Link]:
    """Slices, paddings and updates: a dimension of which all is taken stays where it is."""
    arrays = [(READ, i, a.aval.shape) for i, a in enumerate(eqn.invars) if len(a.aval.shape)]
    arrays.append((WRITTEN, 0, eqn.outvars[0].aval.shape))
    padding = eqn.params.get("padding_config")
    for dimension, length in enumerate(eqn.outvars[0].aval.shape):
        moved = padding is not None and any(padding[dimension])
        if not moved and all(shape[dimension] == length for _, _, shape in arrays):
            yield _linked(*((side, i, dimension) for side, i, _ in arrays))


def _of_one_dimension(param: str) -> Callable[[jex.JaxprEqn], Iterator[Link]]:
    """The rule of a primitive that works along the dimension that a parameter names."""
    return lambda eqn: _of_elementwise(eqn, without=[eqn.params[param]])


def _of_argument_reduction(eqn: jex.JaxprEqn) -> Iterator[Link]:
    kept = (d for d in range(len(eqn.invars[0].aval.shape)) if d not in eqn.params["axes"])
    yield from (_linked((READ, 0, dimension), (WRITTEN, 0, place)) for place, dimension in enumerate(kept))


def _of_top_k(eqn: jex.JaxprEqn) -> Iterator[Link]:
    last = len(eqn.invars[0].aval.shape) - 1
    return _of_elementwise(eqn, without=[eqn.params.get("axis", last)])


def _of_indexed(eqn: jex.JaxprEqn, numbers: RowNumbers) -> Iterator[Link]:
    """The links of a gather (operand, indices) -> slices, or a scatter (operand, indices, slices) -> operand."""
    at = _Indexing(eqn)
    for own, of_indices in at.batching:
        yield at.link(own, of_indices, None)
    counted: set[int] = set()
    for column, own in enumerate(at.columns):
        dimension = numbers.dimension_of_column(eqn.invars[1], column)
        if dimension in at.slice_place and own in at.collapsed and dimension not in counted:
            same = at.operand[own] == eqn.invars[1].aval.shape[dimension]
            if same:
                counted.add(dimension)
                yield at.link(own, dimension, column)
    if at.is_gather:
        batched = {of_indices for _, of_indices in at.batching}
        for dimension in at.slice_place:
            if dimension not in counted | batched:
                yield _linked((READ, 1, dimension), (WRITTEN, 0, at.slice_place[dimension]))
    for own, place in at.windows:
        if at.operand[own] == at.slices[place]:
            ends = [(WRITTEN, 0, place)] if at.is_gather else [(READ, 2, place), (WRITTEN, 0, own)]
            yield _linked((READ, 0, own), *ends)


class _Indexing:
    """The dimension numbers of a gather or a scatter under common names.

    Attributes:
      operand: Shape of the operand.
      slices: Shape of the gathered slices, or of the updates.
      columns: For each column of the indices the operand's dimension.
      collapsed: Operand dimensions that the slices do not have.
      batching: Pairs of dimensions of operand and indices that count together.
      windows: Pairs of dimensions of operand and slices.
      slice_place: For each dimension of the indices but the last its dimension in the slices.
    """

    def __init__(self, eqn: jex.JaxprEqn) -> None:
        numbers: Any = eqn.params["dimension_numbers"]
        self.is_gather = eqn.primitive.name == "gather"
        self.operand = eqn.invars[0].aval.shape
        self.slices = (eqn.outvars[0] if self.is_gather else eqn.invars[2]).aval.shape
        if self.is_gather:
            windows, self.collapsed = numbers.offset_dims, numbers.collapsed_slice_dims
            self.columns, of_indices = numbers.start_index_map, numbers.start_indices_batching_dims
        else:
            windows, self.collapsed = numbers.update_window_dims, numbers.inserted_window_dims
            self.columns, of_indices = numbers.scatter_dims_to_operand_dims, numbers.scatter_indices_batching_dims
        self.batching = list(zip(numbers.operand_batching_dims, of_indices, strict=True))
        gone = {*self.collapsed, *numbers.operand_batching_dims}
        kept = (d for d in range(len(self.operand)) if d not in gone)
        self.windows = list(zip(kept, windows, strict=True))
        others = (d for d in range(len(self.slices)) if d not in windows)
        self.slice_place: dict[int | None, int] = dict(enumerate(others))

    def link(self, own: int, of_indices: int, column: int | None) -> Link:
        """The link of a dimension of the operand that counts with one of the indices."""
        place = self.slice_place[of_indices]
        ends = [(WRITTEN, 0, place)] if self.is_gather else [(READ, 2, place), (WRITTEN, 0, own)]
        return _linked((READ, 0, own), (READ, 1, of_indices), *ends, index_column=column)


_RULES: dict[str, Callable[[jex.JaxprEqn], Iterator[Link]]] = {
    "dot_general": _of_dot_general,
    "conv_general_dilated": _of_convolution,
    **dict.fromkeys(
        ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"), _of_reduction
    ),
    **dict.fromkeys(("argmax", "argmin"), _of_argument_reduction),
    "broadcast_in_dim": _of_broadcast,
    "iota": _of_iota,
    "transpose": _of_transpose,
    "squeeze": _of_squeeze,
    **dict.fromkeys(("slice", "pad", "dynamic_slice", "dynamic_update_slice"), _of_same_lengths),
    "concatenate": _of_one_dimension("dimension"),
    "split": _of_one_dimension("axis"),
    "sort": _of_one_dimension("dimension"),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), _of_one_dimension("axis")),
    "top_k": _of_top_k,
}
