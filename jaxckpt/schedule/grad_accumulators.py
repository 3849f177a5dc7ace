"""Sums of the backward that are added to again and again: gradients of what several layers share.

A bias that all layers read, or what an encoder made for every layer of a decoder, has a gradient to which each of them
adds. Compilers may put all of these additions off to the end; what is added then waits for that.

Read after `graph`.
"""

from itertools import accumulate

from jaxckpt.ir.graph import Graph, Op, Phase
from jaxckpt.ir.kind import Kind


class GradAccumulators:
    """Values outside of loops that the backward makes to add them to others, by where that is.

    Args:
      graph: The step.

    Attributes:
      ends: For each of these values the op that adds it, its only reader.
    """

    def __init__(self, graph: Graph):
        self._graph = graph
        self._products = tuple(accumulate(op.kind is Kind.CONTRACTION for op in graph.ops))
        readers = ((v, graph.readers[v]) for op in graph.ops if _makes_addends(op) for v in op.writes)
        self.ends = {v: read[0] for v, read in readers if len(read) == 1 and _adds(graph.ops[read[0]])}

    def live_at(self, op: int) -> list[int]:
        """Values made before an op that are added behind the next product after it."""
        products = self._products
        return [v for v, end in self.ends.items() if self._made(v) < op and products[op] < products[end]]

    def _made(self, value: int) -> int:
        made = self._graph.producer[value]
        assert made is not None, "ops write them"
        return made


def _makes_addends(op: Op) -> bool:
    """Views and casts are made where they are read."""
    rearranges = op.kind is Kind.VIEW or op.primitive == "convert_element_type"
    return op.phase is Phase.BACKWARD and op.loop is None and not rearranges


def _adds(op: Op) -> bool:
    return op.phase is Phase.BACKWARD and op.loop is None and op.primitive == "add_any"
