"""In which order the axes of an array lie in memory, and where two orders meet.

A product comes out with its axes in the order in which it was asked for; a transposition behind it moves nothing, the
work that follows goes over memory as it lies. But an elementwise op needs its operands in one order. Where a product
of the backward pass meets one of the forward pass that lies otherwise (an `einsum` that had its operands swapped), the
later one is turned: compilers do that as soon as they have it, behind a cast if there is one. Rows and columns of a
product may change places for nothing. Where the two stand in loops, what the earlier one stacks is turned as a whole
before the later loop begins.

Graph structure alone decides here; what follows for memory, `fusion` says. Read after `jaxckpt.ir`.
Complexity: linear in ops, but for the way back to a product where orders meet.
"""

import re
from collections.abc import Iterator

from jaxckpt.ir import Graph, Kind, Op

AxisOrder = tuple[int, ...]
"""Axes of a value, those that lie furthest apart first."""

_PERMUTATION = re.compile(r"permutation=\(([\d,]+)\)")


class Layouts:
    """The order of every value that does not lie as its shape says.

    Args:
      graph: The step.

    Attributes:
      transposed: Ops whose results are a product turned to another's order.
      met: Products that another was turned to.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        self.transposed: set[int] = set()
        self.transposed_to: set[int] = set()
        self._order: dict[int, AxisOrder] = {}
        self._product: dict[int, int] = {}
        """For each value of elementwise work and transpositions the product whose order it has."""
        for op in graph.ops:
            self._settle(op)

    def of(self, value: int) -> AxisOrder:
        """The order of a value."""
        return self._order.get(value) or tuple(range(len(self.graph.values[value].shape)))

    def transposes_stack(self, value: int) -> bool:
        """Whether a later loop wants what all turns make of a value in another order."""
        return self._product.get(value) in self.transposed_to

    def reduces_strided_axes(self, op: Op) -> bool:
        """Whether a reduction of the last axes goes over what does not lie together."""
        if not op.reads:
            return False
        whole, rows = (self.graph.values[v].shape for v in (op.reads[0], op.writes[0]))
        reduces_last = whole[: len(rows)] == rows
        return reduces_last and any(axis < len(rows) for axis in self.of(op.reads[0])[len(rows) :])

    def _settle(self, op: Op) -> None:
        graph = self.graph
        if op.kind is Kind.CONTRACTION:
            self._product.update((v, op.id) for v in op.writes)
        elif op.primitive == "transpose" and self._product.keys() & set(op.reads):
            axes = permutation_of(op)
            self._put(op.writes[0], tuple(axes.index(axis) for axis in self.of(op.reads[0])), op.reads[0])
        elif op.kind is Kind.ELEMENTWISE and len(op.writes) == 1 and len(graph.values[op.writes[0]].shape) > 1:
            whole = sorted(self._whole(op), key=lambda v: self._product[v])
            if not whole:
                return
            for other in whole[1:]:
                if self.of(other) != self.of(whole[0]):
                    self._bring(other, whole[0])
            self._put(op.writes[0], self.of(whole[0]), whole[0])

    def _put(self, value: int, order: AxisOrder, like: int) -> None:
        self._order[value], self._product[value] = order, self._product[like]

    def _whole(self, op: Op) -> Iterator[int]:
        """Operands of the result's shape that come from a product."""
        shape = self.graph.values[op.writes[0]].shape
        return (v for v in op.reads if v in self._product and self.graph.values[v].shape == shape)

    def _bring(self, value: int, like: int) -> None:
        """A value, and what it is made of down to its product, gets the order of another."""
        is_free = _exchanges(self.of(value), self.of(like))
        if not is_free:
            self.transposed_to.add(self._product[like])
        while True:
            self._put(value, self.of(like), like)
            made = self.graph.producer[value]
            assert made is not None, "a product is nobody's input"
            op = self.graph.ops[made]
            before = [v for v in self._whole(op) if self.of(v) != self.of(like)]
            if op.kind is not Kind.ELEMENTWISE or len(before) != 1 or not self.is_elementwise_result(before[0]):
                if not is_free:
                    self.transposed.add(op.id)
                return
            value = before[0]

    def is_elementwise_result(self, value: int) -> bool:
        """Whether elementwise work makes a value."""
        made = self.graph.producer[value]
        return made is not None and self.graph.ops[made].kind is Kind.ELEMENTWISE


def _exchanges(order: AxisOrder, other: AxisOrder) -> bool:
    """Whether two blocks at the end of an order stand in the other the other way round, as rows and columns may."""
    same = next(i for i, (a, b) in enumerate(zip(order, other, strict=True)) if a != b)
    tail, turned = order[same:], other[same:]
    return any(tail[k:] + tail[:k] == turned for k in range(1, len(tail)))


def permutation_of(op: Op) -> AxisOrder:
    """The axes of the operand in the order of the result's."""
    found = _PERMUTATION.fullmatch(op.detail)
    assert found, f"a transposition says what it does: {op.detail!r}"
    return tuple(map(int, found[1].split(",")))
