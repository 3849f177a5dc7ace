"""What a value is made of, where that is views and elementwise work on arguments alone: a transposed parameter, a mask.

Read after `graph`; `schedule` asks.
"""

from jaxckpt.ir.graph import Graph
from jaxckpt.ir.kind import Kind


def light_roots(graph: Graph, value: int) -> set[int] | None:
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
