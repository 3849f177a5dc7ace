"""What a value is made of, where that is views and elementwise work on arguments alone: a transposed parameter, a mask.

Read after `graph`; `schedule` and `jaxckpt.rewrite.tile_loops` ask.
"""

from jaxckpt.ir.graph import Graph, Op
from jaxckpt.ir.kind import Kind

_SPREAD = 1 / 8
"""A value is spread out where what it is made of takes at most this share of its bytes."""


def argument_roots(graph: Graph, value: int) -> set[int] | None:
    """The arguments that a value is made of, if by views and elementwise work alone; else None."""
    pending, seen, roots = [value], set[int](), set[int]()
    while pending:
        read = pending.pop()
        made = graph.producer[read]
        if made is None:
            roots.add(read)
        elif made not in seen:
            seen.add(made)
            if graph.ops[made].kind not in (Kind.VIEW, Kind.ELEMENTWISE):
                return None
            pending.extend(graph.ops[made].reads)
    return roots


def is_broadcast(graph: Graph, value: int) -> bool:
    """Whether a value is much larger than what it is made of, by views and elementwise work: a mask, zeros.

    The body of a loop that asks for it makes it itself: it never need be in memory.
    """
    roots = argument_roots(graph, value)
    return (
        roots is not None and sum(graph.values[v].size_bytes for v in roots) <= _SPREAD * graph.values[value].size_bytes
    )


def is_broadcast_over(graph: Graph, value: int, size_bytes: int) -> bool:
    """Whether an array of a size repeats a smaller one, or a constant, where this value stands for it."""
    if graph.values[value].size_bytes < size_bytes:
        return True
    made = graph.producer[value]
    if made is None or graph.ops[made].kind is not Kind.VIEW:
        return False
    reads = graph.ops[made].reads
    return not reads or is_broadcast_over(graph, reads[0], size_bytes)


def is_view_of(graph: Graph, op: Op) -> bool:
    """Whether an op is a view of one array of the same size."""
    if op.kind is not Kind.VIEW or len(op.reads) != 1 or len(op.writes) != 1:
        return False
    return graph.values[op.reads[0]].size_bytes == graph.values[op.writes[0]].size_bytes
