"""Zeros that the backward scatters into, and what they can wait for.

The gradient of a gather is scattered into zeros. They depend on nothing: a compiler may make them when the step begins,
and they take their place until then.

Read after `graph`.
"""

from jaxckpt.ir.graph import Graph, Op, Phase
from jaxckpt.ir.kind import Kind

_IN_MEMORY = frozenset({Kind.CONTRACTION, Kind.REDUCTION, Kind.SCATTER, Kind.OPAQUE})
"""What these make is in memory in any case, so that passing a barrier costs nothing."""


def waits_of_zeros(graph: Graph) -> dict[int, int]:
    """For each op that makes such zeros, the value of the backward that comes last before the scatter.

    That is a value in memory which the scattered one is computed of. Zeros whose scatter is added to something are
    left out: compilers scatter into that. So are those in the bodies of loops.
    """
    found = {}
    for op in graph.ops:
        if op.kind is Kind.SCATTER and op.phase is Phase.BACKWARD and op.loop is None and len(op.reads) > 1:
            made = graph.producer[op.reads[0]]
            waits_for = _in_memory(graph, op.reads[-1])
            if made is None or waits_for is None or not _is_held_for(graph, graph.ops[made], op):
                continue
            found[made] = waits_for
    return found


def _is_held_for(graph: Graph, zeros: Op, scatter: Op) -> bool:
    """Whether these zeros are of a literal, for this scatter alone, which is not added to anything."""
    if zeros.primitive != "broadcast_in_dim" or zeros.reads or graph.readers[zeros.writes[0]] != (scatter.id,):
        return False
    return not any(graph.ops[r].primitive in ("add", "add_any") for r in graph.readers[scatter.writes[0]])


def _in_memory(graph: Graph, value: int) -> int | None:
    """The value itself, or the last one in memory that it is computed of, of what the backward wrote."""
    while _is_of_backward(graph, value):
        made = graph.producer[value]
        assert made is not None, "the backward made it"
        if graph.ops[made].kind in _IN_MEMORY:
            return value
        value = max(graph.ops[made].reads, key=lambda v: -1 if (op := graph.producer[v]) is None else op, default=-1)
    return None


def _is_of_backward(graph: Graph, value: int) -> bool:
    made = graph.producer[value] if value >= 0 else None
    return made is not None and graph.ops[made].phase is Phase.BACKWARD
