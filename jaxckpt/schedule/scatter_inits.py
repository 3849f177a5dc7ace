"""Zeros that a step scatters into, and what they can wait for.

The gradient of a gather is scattered into zeros, and so are the messages of a graph's edges. Zeros depend on nothing: a
compiler may make them when the step begins, once for all that are alike, and they take their place all the time.

Read after `graph`.
"""

from jaxckpt.ir.graph import Graph, Op, Phase
from jaxckpt.ir.kind import Kind
from jaxckpt.schedule.argument_derived import is_broadcast_over

_IN_MEMORY = frozenset({Kind.CONTRACTION, Kind.REDUCTION, Kind.SCATTER, Kind.OPAQUE})
"""What these make is in memory in any case, so that passing a barrier costs nothing."""


def initialiser_dependencies(graph: Graph) -> dict[int, int]:
    """For each op that makes such zeros, the value that comes last before the scatter.

    That is a value in memory which the scattered one is computed of, or where nobody reads that any more, the scattered
    one itself, if it is no larger than the zeros. Zeros whose scatter is added to something are left out: compilers
    scatter into that. So are those in the bodies of loops.
    """
    found, added = {}, scatters_fused_with_add(graph)
    for op in graph.scatters:
        if op.phase is Phase.UPDATE or op.loop is not None or op.id in added:
            continue
        made = graph.producer[op.reads[0]]
        if made is not None and _is_held_for(graph, graph.ops[made], op):
            waits_for = _in_memory(graph, op.reads[-1], op.phase)
            if waits_for is not None:
                found[made] = waits_for if graph.readers[waits_for][-1] > made else _scattered(graph, op, waits_for)
    return found


def _scattered(graph: Graph, scatter: Op, waits_for: int) -> int:
    """What is scattered, if that is there before the zeros and no larger; a barrier then puts it into memory."""
    zeros, scattered = scatter.reads[0], scatter.reads[-1]
    is_there = (graph.producer[scattered] or 0) < (graph.producer[zeros] or 0)
    is_small = graph.values[scattered].size_bytes <= graph.values[zeros].size_bytes
    return scattered if is_there and is_small else waits_for


def _is_held_for(graph: Graph, zeros: Op, scatter: Op) -> bool:
    """Whether these zeros are of a literal, and for this scatter alone."""
    return zeros.primitive == "broadcast_in_dim" and not zeros.reads and graph.readers[zeros.writes[0]] == (scatter.id,)


def _in_memory(graph: Graph, value: int, phase: Phase) -> int | None:
    """The value itself, or the last one in memory that it is computed of, made in the same part of the step."""
    pending = {value}
    while pending:
        last = max(pending, key=lambda v: -1 if (op := graph.producer[v]) is None else op)
        made = graph.producer[last]
        if made is None:
            return None
        op = graph.ops[made]
        if op.phase is phase and op.kind in _IN_MEMORY:
            return last
        pending.discard(last)
        pending.update(op.reads if op.phase is phase else ())
    return None


def scatters_fused_with_add(graph: Graph) -> frozenset[int]:
    """Scatters over a constant whose only reader adds the result to something."""
    found = set()
    for op in graph.scatters:
        if not op.reads or len(op.writes) != 1:
            continue
        readers = graph.readers[op.writes[0]]
        base = graph.producer[op.reads[0]]
        over_constant = base is not None and not graph.ops[base].reads
        if over_constant and len(readers) == 1 and graph.ops[readers[0]].primitive in ("add", "add_any"):
            (result,) = op.writes
            addends = (v for v in graph.ops[readers[0]].reads if v != result)
            if not any(is_broadcast_over(graph, v, graph.values[result].size_bytes) for v in addends):
                found.add(op.id)
    return frozenset(found)
