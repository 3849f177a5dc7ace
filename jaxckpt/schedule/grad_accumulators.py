"""Gradient accumulators: running sums of the backward, where several layers share a parameter or an activation.

A bias that all layers read, or an encoder's output that every decoder layer reads, has a gradient to which each of them
adds. A compiler may postpone all of these additions to the end, and then keeps every addend until there.

Read after `jaxckpt.ir`.
"""

from itertools import accumulate

from jaxckpt.ir.graph import Graph, Op, Phase
from jaxckpt.ir.kind import Kind


class GradAccumulators:
    """Values that the backward computes, outside of loops, only to add them to others.

    Attributes:
      added_by: For each of these values the op that adds it, its only reader.
    """

    def __init__(self, graph: Graph):
        self._products = tuple(accumulate(op.kind is Kind.CONTRACTION for op in graph.ops))
        """For each op the number of matrix products up to it."""
        self._written_by = {v: op.id for op in graph.ops if _makes_addends(op) for v in op.writes}
        readers = ((v, graph.readers[v]) for v in self._written_by)
        self.added_by = {v: read[0] for v, read in readers if len(read) == 1 and _adds(graph.ops[read[0]])}

    def live_at(self, op: int) -> list[int]:
        """Values computed before an op that are added only behind the next matrix product after it."""
        products = self._products
        return [v for v, by in self.added_by.items() if self._written_by[v] < op and products[op] < products[by]]


def _makes_addends(op: Op) -> bool:
    """True for ops of the backward but views and casts, which fuse into the addition."""
    rearranges = op.kind is Kind.VIEW or op.primitive == "convert_element_type"
    return op.phase is Phase.BACKWARD and op.loop is None and not rearranges


def _adds(op: Op) -> bool:
    return op.phase is Phase.BACKWARD and op.loop is None and op.primitive == "add_any"
