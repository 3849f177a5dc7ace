"""The residuals of a graph: forward values that the backward reads.

This is the list that every decision is about. Which of them a compiler really keeps is another question
(`jaxckpt.cost.fusion`): a broadcast or a mask that stands here costs nothing to make again.
"""

from dataclasses import dataclass

from jaxckpt.ir.graph import Graph, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """A forward value that the backward or the update reads.

    Attributes:
      value: Its id.
      op: The forward op that makes it.
      readers: The ops after the forward pass that read it, in order.
    """

    value: int
    op: int
    readers: tuple[int, ...]


def residuals(graph: Graph) -> tuple[Residual, ...]:
    """All residuals of a graph, in the order in which they are made.

    Arguments of the step are no residuals: they are in memory anyway.
    """
    found = []
    for op in graph.ops:
        if op.phase is not Phase.FORWARD:
            continue
        for value in op.writes:
            late = tuple(r for r in graph.readers[value] if graph.ops[r].phase is not Phase.FORWARD)
            if late:
                found.append(Residual(value=value, op=op.id, readers=late))
    return tuple(found)
