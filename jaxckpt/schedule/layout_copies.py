"""Layout copies: views of a product that the next product cannot read in their layout, so that they are copied.

A matrix product goes over an operand with one stride for its batch axes, one for the axes that it contracts, and one
for the rest. So the axes of each group must be contiguous with each other. Where they are not (heads, which an
attention block puts between batch and sequence, and takes back into the width), the operand is transposed first, once
for all products that read it so.

The result of an elementwise op has the layout of the product that it comes of, which may be none that the next product
can read. A compiler writes such a result in the right layout, unless it is pinned: the barrier passes on the layout as
it is, and each product that reads the value transposes it. So the value has to be pinned in the layout of its shape.

Read after `layout`. Complexity: linear in ops.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise

from jaxckpt.ir import Graph, Kind, Op
from jaxckpt.schedule.argument_derived import is_view_of
from jaxckpt.schedule.layout import Layouts, permutation_of

Strides = tuple[tuple[int, int], ...]
"""Length and stride of each axis, in elements."""
AxisGroups = tuple[tuple[int, ...], ...]
"""Axes that a product contracts, those that it batches over, and the rest."""

_AXES = re.compile(r"dimension_numbers=\(\(\(([\d,]*)\),\(([\d,]*)\)\),\(\(([\d,]*)\),\(([\d,]*)\)\)\)")


def copied_views(graph: Graph) -> frozenset[int]:
    """Views whose results are copied for the products that read them."""
    return frozenset(view for op in graph.ops for view in _copied_for(graph, op))


def read_in_default_layout(graph: Graph) -> frozenset[int]:
    """Results of elementwise ops that have another layout than their shape, and that a product reads only in that one.

    Example:
      With groups of query heads, `einsum("bqkgd,bskd->bkgqs", q, k)` has the layout (b, k, s, q, g), and so has its
      softmax; `einsum("bkgqs,bskd->bqkgd", weights, v)` goes over (g, q) with one stride.
    """
    layouts = Layouts(graph)
    found = set()
    for op in graph.ops:
        for read, groups in _operands(graph, op):
            order = layouts.of(read)
            if layouts.is_elementwise_result(read) and order != tuple(range(len(order))):
                shape = graph.values[read].shape
                strides = dict(zip(order, _dense(tuple(shape[axis] for axis in order)), strict=True))
                if not _is_readable(strides, groups) and _is_readable(dict(enumerate(_dense(shape))), groups):
                    found.add(read)
    return frozenset(found)


def _copied_for(graph: Graph, op: Op) -> Iterator[int]:
    """The views that are copied for a product: the last transposition, or the first view where there is none."""
    for read, groups in _operands(graph, op):
        views = _views_of_product(graph, read)
        if not views:
            continue
        strides = _strides_behind(graph, views)
        if strides is None or not _is_readable(dict(enumerate(strides)), groups):
            yield next((view for view in reversed(views) if graph.ops[view].primitive == "transpose"), views[0])


def _operands(graph: Graph, op: Op) -> Iterator[tuple[int, AxisGroups]]:
    """The two operands of a matrix product, each with its groups of axes."""
    axes = _AXES.search(op.detail) if op.primitive == "dot_general" and len(op.reads) == 2 else None
    if axes is None:
        return
    left, right, left_batch, right_batch = (tuple(map(int, filter(None, each.split(",")))) for each in axes.groups())
    for read, contracted, batch in ((op.reads[0], left, left_batch), (op.reads[1], right, right_batch)):
        free = (axis for axis in range(len(graph.values[read].shape)) if axis not in (*contracted, *batch))
        yield read, (contracted, batch, tuple(free))


def _is_readable(strides: Mapping[int, tuple[int, int]], groups: AxisGroups) -> bool:
    """True if a product can read an operand without a copy: each group of its axes has one stride."""
    return all(_is_contiguous([strides[axis] for axis in group]) for group in groups)


def _views_of_product(graph: Graph, value: int) -> list[int]:
    """The views between a product and a value, in order; none where other ops stand between them."""
    views: list[int] = []
    while (producer := graph.producer[value]) is not None:
        op = graph.ops[producer]
        if op.kind is Kind.CONTRACTION:
            return views[::-1]
        if not is_view_of(graph, op):
            break
        views.append(producer)
        value = op.reads[0]
    return []


def _strides_behind(graph: Graph, views: list[int]) -> Strides | None:
    """The strides of the last view's result; None where a reshape on the way needs a copy."""
    strides: Strides | None = _dense(graph.values[graph.ops[views[0]].reads[0]].shape)
    for view in views:
        op = graph.ops[view]
        if strides is None:
            return None
        if op.primitive == "transpose":
            strides = tuple(strides[axis] for axis in permutation_of(op))
        else:
            strides = _reshaped(strides, graph.values[op.writes[0]].shape)
    return strides


def _dense(shape: tuple[int, ...]) -> Strides:
    """The strides of an array in the default layout (row major)."""
    strides: list[tuple[int, int]] = []
    stride = 1
    for length in reversed(shape):
        strides.insert(0, (length, stride))
        stride *= length
    return tuple(strides)


def _reshaped(strides: Strides, shape: tuple[int, ...]) -> Strides | None:
    """The strides of another shape over the same elements; None where there are none."""
    axes = [axis for axis in strides if axis[0] > 1]
    found: list[tuple[int, int]] = []
    for length in reversed(shape):
        if length == 1:
            found.insert(0, (1, 1))
            continue
        _merge_last(axes, length)
        if not axes or axes[-1][0] % length:
            return None
        rest, stride = axes[-1][0] // length, axes[-1][1]
        found.insert(0, (length, stride))
        axes[-1:] = [(rest, stride * length)] if rest > 1 else []
    return tuple(found)


def _merge_last(axes: list[tuple[int, int]], length: int) -> None:
    """Merges the last axes of an array as long as they are contiguous and shorter than a length."""
    while len(axes) > 1 and axes[-1][0] < length and _is_contiguous(axes[-2:]):
        (outer, _), (inner, stride) = axes[-2:]
        axes[-2:] = [(outer * inner, stride)]


def _is_contiguous(axes: list[tuple[int, int]]) -> bool:
    """True if axes follow one another in memory, the last one with the smallest stride."""
    longer = [axis for axis in axes if axis[0] > 1]
    return all(outer[1] == inner[0] * inner[1] for outer, inner in pairwise(longer))
