"""Layout assignment: the order in which a value's axes lie in memory, and where a compiler transposes a product.

1. A product has the layout that its operands ask for. A transposition behind a product moves nothing, and elementwise
   ops keep the layout of their operands.
2. An elementwise op needs all operands in one layout. Where a product of the backward meets one of the forward in
   another layout (an `einsum` with swapped operands), the later product is transposed, as soon as it exists and behind
   its cast if there is one.
3. Rows and columns of a product may change places for nothing.
4. Where the two stand in loops, the stacked residuals of the earlier one are transposed at once before the later loop.

Only the graph decides here; `jaxckpt.cost.fusion` says what follows for memory. Read after `jaxckpt.ir`.
Complexity: linear in ops, but for the way back to a product where layouts meet.
"""

import re
from collections.abc import Iterator

from jaxckpt.ir import Graph, Kind, Op

AxisOrder = tuple[int, ...]
"""Axes of a value from the largest stride to the smallest."""

_PERMUTATION = re.compile(r"permutation=\(([\d,]+)\)")


class Layouts:
    """The axis order of every value.

    Attributes:
      transposed: Ops whose results are a product, transposed to the layout of another one.
      transposed_to: Products to whose layout another one is transposed.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        self.transposed: set[int] = set()
        self.transposed_to: set[int] = set()
        self._order: dict[int, AxisOrder] = {}
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
            axes = permutation_of(op)
            self._put(op.writes[0], tuple(axes.index(axis) for axis in self.of(op.reads[0])), op.reads[0])
        elif op.kind is Kind.ELEMENTWISE and len(op.writes) == 1 and len(self.graph.values[op.writes[0]].shape) > 1:
            self._assign_elementwise(op)

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
            if op.kind is not Kind.ELEMENTWISE or len(before) != 1 or not self.is_elementwise_result(before[0]):
                if not is_free:
                    self.transposed.add(op.id)
                return
            value = before[0]

    def is_elementwise_result(self, value: int) -> bool:
        """True if an elementwise op writes a value."""
        producer = self.graph.producer[value]
        return producer is not None and self.graph.ops[producer].kind is Kind.ELEMENTWISE


def _exchanges(order: AxisOrder, other: AxisOrder) -> bool:
    """True if two blocks of axes at the end of one order are exchanged in the other, as rows and columns may be."""
    same = next(i for i, (a, b) in enumerate(zip(order, other, strict=True)) if a != b)
    tail, exchanged = order[same:], other[same:]
    return any(tail[k:] + tail[:k] == exchanged for k in range(1, len(tail)))


def permutation_of(op: Op) -> AxisOrder:
    """Axes of a transposition's operand in the order of the result."""
    found = _PERMUTATION.fullmatch(op.detail)
    assert found, f"a transposition says what it does: {op.detail!r}"
    return tuple(map(int, found[1].split(",")))
