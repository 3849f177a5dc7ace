"""Layout assignment: the order in which a value's axes lie in memory, and where a compiler transposes a product.

1. A product has the layout that its operands ask for. A transposition behind a product moves nothing, and elementwise
   ops keep the layout of their operands.
2. An elementwise op needs all operands in one layout. Where a product of the backward meets one of the forward in
   another layout (an `einsum` with swapped operands), the later product is transposed, as soon as it exists and behind
   its cast if there is one.
3. Rows and columns of a product may change places for nothing.
4. Where the two stand in loops, the stacked residuals of the earlier one are transposed at once before the later loop.
5. A Fourier transform reads and writes arrays in row-major order. Transpositions in front of it and behind it move
   nothing: what they read and show has the transform's layout, and so have all results that elementwise ops link with
   that. The kernel that computes such a result of a product transposes the product.

Layout copies are views that the next op cannot read in their layout, so that they are copied: views of a product that
another product reads, and transpositions in front of a Fourier transform of what is in another layout.
A matrix product goes over an operand with one stride for its batch axes, one for the axes that it contracts, and one
for the rest. So the axes of each group must be contiguous with each other. Where they are not (heads, which an
attention block puts between batch and sequence, and takes back into the width), the operand is transposed first, once
for all products that read it so.

The result of an elementwise op has the layout of the product that it comes of, which may be none that the next product
can read. A compiler writes such a result in the right layout, unless it is pinned: the barrier passes on the layout as
it is, and each product that reads the value transposes it. So the value has to be pinned in the layout of its shape.
The same is true of layout copies that several products read, pinned or not.

Only the graph decides here; `jaxckpt.cost.fusion` says what follows for memory. Read after `argument_derived`.
Complexity: linear in ops, but for the way back to a product where layouts meet.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise, product

from jaxckpt.ir import Graph, Kind, Op
from jaxckpt.schedule.argument_derived import is_view_of

AxisOrder = tuple[int, ...]
"""Axes of a value from the largest stride to the smallest."""
Strides = tuple[tuple[int, int], ...]
"""Length and stride of each axis, in elements."""
AxisGroups = tuple[tuple[int, ...], ...]
"""Axes that a product contracts, those that it batches over, and the rest."""

_PERMUTATION = re.compile(r"permutation=\(([\d,]+)\)")
_AXES = re.compile(r"dimension_numbers=\(\(\(([\d,]*)\),\(([\d,]*)\)\),\(\(([\d,]*)\),\(([\d,]*)\)\)\)")


class Layouts:
    """The axis order of every value.

    Attributes:
      transposed: Ops whose results are a product, transposed to the layout of another one.
      transposed_to: Products to whose layout another one is transposed.
      of_transforms: Values that have their layout from a Fourier transform.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        self.of_transforms = _orders_of_transforms(graph)
        self.transposed: set[int] = set()
        self.transposed_to: set[int] = set()
        self._order = dict(self.of_transforms)
        self._product: dict[int, int] = {}
        """For each value that comes of a product by elementwise ops and transpositions, that product."""
        for op in graph.ops:
            self._assign(op)

    def of(self, value: int) -> AxisOrder:
        """Axis order of a value."""
        return self._order.get(value) or tuple(range(len(self.graph.values[value].shape)))

    def transposes_stack(self, value: int) -> bool:
        """True if the stacked residuals of a value are transposed before a later loop."""
        return self._product.get(value) in self.transposed_to

    def reduces_strided_axes(self, op: Op) -> bool:
        """True if a reduction of the last axes goes over elements that are not contiguous."""
        if not op.reads:
            return False
        shape, kept = (self.graph.values[v].shape for v in (op.reads[0], op.writes[0]))
        reduces_last = shape[: len(kept)] == kept
        return reduces_last and any(axis < len(kept) for axis in self.of(op.reads[0])[len(kept) :])

    def _assign(self, op: Op) -> None:
        if op.kind is Kind.CONTRACTION:
            self._product.update((v, op.id) for v in op.writes)
        elif op.primitive == "transpose" and self._product.keys() & set(op.reads):
            axes = _permutation_of(op)
            self._put(op.writes[0], tuple(axes.index(axis) for axis in self.of(op.reads[0])), op.reads[0])
        elif op.kind is Kind.ELEMENTWISE and len(op.writes) == 1 and self._order_is_open(op.writes[0]):
            self._assign_elementwise(op)

    def _order_is_open(self, value: int) -> bool:
        return len(self.graph.values[value].shape) > 1 and value not in self.of_transforms

    def _assign_elementwise(self, op: Op) -> None:
        """Gives all operands, and the result, the layout of the earliest product among them (rule 2)."""
        operands = sorted(self._operands_of_products(op), key=lambda v: self._product[v])
        for other in operands[1:]:
            if self.of(other) != self.of(operands[0]):
                self._transpose(other, operands[0])
        if operands:
            self._put(op.writes[0], self.of(operands[0]), operands[0])

    def _put(self, value: int, order: AxisOrder, like: int) -> None:
        self._order[value], self._product[value] = order, self._product[like]

    def _operands_of_products(self, op: Op) -> Iterator[int]:
        """Operands of the result's shape that come from a product."""
        shape = self.graph.values[op.writes[0]].shape
        return (v for v in op.reads if v in self._product and self.graph.values[v].shape == shape)

    def _transpose(self, value: int, like: int) -> None:
        """Gives a value, and what it is computed from back to its product, the layout of another value."""
        is_free = _exchanges(self.of(value), self.of(like))
        if not is_free:
            self.transposed_to.add(self._product[like])
        while True:
            self._put(value, self.of(like), like)
            producer = self.graph.producer[value]
            assert producer is not None, "a value that comes of a product is no input"
            op = self.graph.ops[producer]
            before = [v for v in self._operands_of_products(op) if self.of(v) != self.of(like)]
            if op.kind is not Kind.ELEMENTWISE or len(before) != 1 or not _is_elementwise_result(self.graph, before[0]):
                if not is_free:
                    self.transposed.add(op.id)
                return
            value = before[0]

    def transposes(self, reads: Iterable[int], writes: Iterable[int]) -> bool:
        """True if an op or a kernel writes a value in a transform's layout of one of its shape in another (rule 5)."""
        if not self.of_transforms:
            return False
        values, pairs = self.graph.values, product(reads, (v for v in writes if v in self.of_transforms))
        return any(values[v].shape == values[w].shape and self.of(v) != self.of(w) for v, w in pairs)


def _is_elementwise_result(graph: Graph, value: int) -> bool:
    """True if an elementwise op writes a value."""
    producer = graph.producer[value]
    return producer is not None and graph.ops[producer].kind is Kind.ELEMENTWISE


def _orders_of_transforms(graph: Graph) -> dict[int, AxisOrder]:
    """Rule 5: the axis orders of transposed Fourier transforms, and of what elementwise ops link with these."""
    found: dict[int, AxisOrder] = {}
    pending = [each for op in graph.ops if op.primitive == "fft" for each in _around_transform(graph, op)]
    while pending:
        value, order = pending.pop()
        if value in found:
            continue
        found[value] = order
        for op in _elementwise_around(graph, value):
            linked = (other for other in (*op.reads, *op.writes) if _is_elementwise_result(graph, other))
            shape = graph.values[value].shape
            pending += [(other, order) for other in linked if graph.values[other].shape == shape]
    return found


def _around_transform(graph: Graph, transform: Op) -> Iterator[tuple[int, AxisOrder]]:
    """The elementwise result in front of a transform's transpositions, and what is behind them, with axis orders."""
    read, order = _transposed(graph, transform)
    if _is_elementwise_result(graph, read):
        yield read, order
    (shown,) = transform.writes
    order = tuple(range(len(graph.values[shown].shape)))
    while [graph.ops[reader].primitive for reader in graph.readers[shown]] == ["transpose"]:
        view = graph.ops[graph.readers[shown][0]]
        axes, (shown,) = _permutation_of(view), view.writes
        order = tuple(axes.index(axis) for axis in order)
    yield shown, order


def _transposed(graph: Graph, transform: Op) -> tuple[int, AxisOrder]:
    """The value in front of the transpositions that a Fourier transform reads, and the axis order that it asks for."""
    (read,) = transform.reads
    order = tuple(range(len(graph.values[read].shape)))
    while (producer := graph.producer[read]) is not None and graph.ops[producer].primitive == "transpose":
        view = graph.ops[producer]
        axes, (read,) = _permutation_of(view), view.reads
        order = tuple(axes[axis] for axis in order)
    return read, order


def _elementwise_around(graph: Graph, value: int) -> Iterator[Op]:
    """The elementwise ops that write or read a value, and have one result."""
    producer = graph.producer[value]
    for op in (*(() if producer is None else (producer,)), *graph.readers[value]):
        if graph.ops[op].kind is Kind.ELEMENTWISE and len(graph.ops[op].writes) == 1:
            yield graph.ops[op]


def _exchanges(order: AxisOrder, other: AxisOrder) -> bool:
    """True if two blocks of axes at the end of one order are exchanged in the other, as rows and columns may be."""
    same = next(i for i, (a, b) in enumerate(zip(order, other, strict=True)) if a != b)
    tail, exchanged = order[same:], other[same:]
    return any(tail[k:] + tail[:k] == exchanged for k in range(1, len(tail)))


def _permutation_of(op: Op) -> AxisOrder:
    """Axes of a transposition's operand in the order of the result."""
    found = _PERMUTATION.fullmatch(op.detail)
    assert found, f"a transposition says what it does: {op.detail!r}"
    return tuple(map(int, found[1].split(",")))


def exchanged_products(graph: Graph) -> frozenset[int]:
    """Transpositions that exchange the rows and columns of a product: the product writes its result like that.

    Example:
      The gradient of a weight is `transpose(dot_general(cotangent, x))`; a compiler exchanges the operands.
    """
    found = set()
    for op in graph.ops:
        producer = graph.producer[op.reads[0]] if op.primitive == "transpose" else None
        groups = [axes for _, axes in _operands(graph, graph.ops[producer])] if producer is not None else []
        if groups:
            (_, batch, rows), (_, _, columns) = groups
            axes = tuple(range(len(batch) + len(rows) + len(columns)))
            begin = len(batch) + len(rows)
            if _permutation_of(op) == (*axes[: len(batch)], *axes[begin:], *axes[len(batch) : begin]):
                found.add(op.id)
    return frozenset(found)


### Layout copies


def is_matrix_product(op: Op) -> bool:
    """True for a product of two matrices: an outer product, and most with a vector, are no contractions."""
    return op.primitive == "dot_general" and op.kind is Kind.CONTRACTION


def copied_views(graph: Graph) -> frozenset[int]:
    """Views whose results are copied for the products and the Fourier transforms that read them."""
    return frozenset(view for op in graph.ops for view in (*_copied_for(graph, op), *_copied_for_fft(graph, op)))


def read_in_default_layout(graph: Graph) -> frozenset[int]:
    """Results of elementwise ops that have another layout than their shape, and that a product reads only in that one.

    Example:
      With groups of query heads, `einsum("bqkgd,bskd->bkgqs", q, k)` has the layout (b, k, s, q, g), and so has its
      softmax; `einsum("bkgqs,bskd->bqkgd", weights, v)` goes over (g, q) with one stride.
    """
    layouts = graph.once(Layouts)
    found = set()
    for op in graph.ops:
        for read, groups in _operands(graph, op):
            is_free = _is_elementwise_result(graph, read) and read not in layouts.of_transforms
            shape = graph.values[read].shape
            if is_free and not _is_read(layouts, read, groups) and _is_readable(dict(enumerate(_dense(shape))), groups):
                found.add(read)
    return frozenset(found)


def read_from_transforms(graph: Graph) -> Mapping[int, tuple[int, ...]]:
    """For each product the operands whose layout comes from a Fourier transform, and is none that a library reads.

    A kernel of the compiler's own goes over them as they are. A product that is summed in parts (`cost.padding`) is
    the library's: such an operand is copied for it.
    """
    layouts, found = graph.once(Layouts), dict[int, tuple[int, ...]]()
    for op in graph.ops if layouts.of_transforms else ():
        for read, groups in _operands(graph, op):
            if read in layouts.of_transforms and not _is_read(layouts, read, groups):
                found[op.id] = (*found.get(op.id, ()), read)
    return found


def _is_read(layouts: Layouts, value: int, groups: AxisGroups) -> bool:
    """True if a product can read a value in its layout."""
    order, shape = layouts.of(value), layouts.graph.values[value].shape
    return _is_readable(dict(zip(order, _dense(tuple(shape[axis] for axis in order)), strict=True)), groups)


def copied_for_each_product(graph: Graph) -> frozenset[int]:
    """Values that each product copies for itself, unless they are in the layout of their shape.

    Layout copies that are views, and concatenations of views that transpose products: XLA gives such a concatenation
    the layout of its parts.

    Example:
      The gradient of a fused projection of queries, keys and values is a concatenation, whose parts have the heads in
      front of the sequence. XLA copies it twice (jax 0.12.0.1): for the gradient of the weights, and for that of what
      was projected.
    """
    views = (graph.ops[view].writes[0] for op in graph.ops for view in _copied_for(graph, op))
    concatenations = (op.writes[0] for op in graph.ops if _concatenates_transposed_products(graph, op))
    return frozenset((*views, *concatenations))


def _concatenates_transposed_products(graph: Graph, op: Op) -> bool:
    """True for a concatenation, which a product reads, of views that transpose products."""
    if op.primitive != "concatenate" or len(op.reads) < 2:
        return False
    views_of_parts = (_views_of_product(graph, part) for part in op.reads)
    is_transposed = all(any(graph.ops[v].primitive == "transpose" for v in views) for views in views_of_parts)
    readers = (graph.ops[reader] for reader in graph.readers[op.writes[0]])
    return is_transposed and any(map(is_matrix_product, readers))


def _copied_for(graph: Graph, op: Op) -> Iterator[int]:
    """The views that are copied for a product: the last transposition, or the first view where there is none."""
    for read, groups in _operands(graph, op):
        views = _views_of_product(graph, read)
        if not views:
            continue
        strides = _strides_behind(graph, views)
        if strides is None or not _is_readable(dict(enumerate(strides)), groups):
            yield next((view for view in reversed(views) if graph.ops[view].primitive == "transpose"), views[0])


def _copied_for_fft(graph: Graph, op: Op) -> Iterator[int]:
    """The last transposition among the views in front of a Fourier transform of what is in another layout."""
    if op.primitive != "fft" or _transposed(graph, op) in graph.once(Layouts).of_transforms.items():
        return
    producer = graph.producer[op.reads[0]]
    while producer is not None:
        view = graph.ops[producer]
        if view.primitive == "transpose":
            yield producer
            return
        producer = graph.producer[view.reads[0]] if is_view_of(graph, view) else None


def _operands(graph: Graph, op: Op) -> Iterator[tuple[int, AxisGroups]]:
    """The two operands of a matrix product, each with its groups of axes."""
    axes = _AXES.search(op.detail) if is_matrix_product(op) and len(op.reads) == 2 else None
    if axes is None:
        return
    left, right, left_batch, right_batch = (tuple(map(int, filter(None, each.split(",")))) for each in axes.groups())
    for read, contracted, batch in ((op.reads[0], left, left_batch), (op.reads[1], right, right_batch)):
        free = (axis for axis in range(len(graph.values[read].shape)) if axis not in (*contracted, *batch))
        yield read, (contracted, batch, tuple(free))


def keeps_axis(graph: Graph, op: Op, value: int, axis: int) -> bool:
    """True for a product whose result has an axis of an operand, which is no axis of a batch."""
    return any(read == value and axis in free for read, (_, _, free) in _operands(graph, op))


def has_several_batch_axes(graph: Graph, op: Op) -> bool:
    """True for a product with more than one batch axis that is longer than 1: compilers make one axis of them."""
    operand = next(_operands(graph, op), None)
    if operand is None:
        return False
    value, (_, batch, _) = operand
    return sum(graph.values[value].shape[axis] > 1 for axis in batch) > 1


def has_merged_axes(graph: Graph, op: Op) -> bool:
    """True for a product that compilers compute with fewer axes: the free axes of an operand, or the batch, are one."""
    shapes = ((graph.values[value].shape, free) for value, (_, _, free) in _operands(graph, op))
    merges_free = any(sum(shape[axis] > 1 for axis in free) > 1 for shape, free in shapes)
    return merges_free or has_several_batch_axes(graph, op)


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
            strides = tuple(strides[axis] for axis in _permutation_of(op))
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
