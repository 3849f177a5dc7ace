"""Initialisers: the zeros that a step scatters into or begins a loop with, and the value that they can wait for.

The gradient of a gather is scattered into zeros, and so are the messages of a graph's edges. Zeros depend on nothing: a
compiler may write them when the step begins, one buffer for all of a shape, which is then live throughout. Zeros of an
initial carry have to be in memory. XLA fuses equal zeros into all of their readers or into none, so that all others
read this buffer, and keep it live.

Read after `jaxckpt.ir`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Set

from jaxckpt.ir import Graph, Kind, Op, Phase
from jaxckpt.ir.kind import POOLING_GRADIENT
from jaxckpt.ir.regions import CARRY
from jaxckpt.schedule.argument_derived import is_broadcast_over

_MATERIALISED = frozenset({Kind.CONTRACTION, Kind.REDUCTION, Kind.SCATTER, Kind.OPAQUE})
"""Kinds of ops whose results are in memory in any case, so that a barrier over them costs nothing."""


def initialiser_dependencies(graph: Graph) -> dict[int, int]:
    """For each op that makes such zeros, the value that is computed last before the scatter.

    That is the last materialised value which the scattered one is computed from. Where the former is dead by then, the
    zeros wait for the scattered value itself, if that is no larger than they are. Zeros whose scatter is added to
    something are left out: compilers scatter into the addend. So are those in the bodies of loops.

    Zeros that a loop begins with wait for the smallest value that the loop needs and that exists by then.
    """
    found, fused = dict(_initial_carries(graph)), graph.once(scatters_fused_with_add)
    for op in graph.scatters:
        if op.phase is Phase.UPDATE or op.loop is not None or op.id in fused:
            continue
        initialiser = graph.producer[op.reads[0]]
        if initialiser is not None and _is_own(graph, graph.ops[initialiser], op):
            source = _materialised_source(graph, op.reads[-1], op.phase)
            if source is not None:
                is_live = graph.readers[source][-1] > initialiser
                found[initialiser] = source if is_live else _scattered(graph, op, source)
    return found


def _initial_carries(graph: Graph) -> Iterator[tuple[int, int]]:
    """The initial carries that equal a broadcast elsewhere, each with the value that it can wait for."""
    equal = Counter(_broadcast(graph, op) for op in graph.ops if op.primitive == "broadcast_in_dim" and not op.reads)
    begun: list[tuple[int, Op]] = []
    """The loops whose initial carries are such zeros, each with the op that makes them."""
    for carry in (op for op in graph.ops if op.primitive == CARRY and op.reads):
        loop, made = carry.loop, graph.producer[carry.reads[0]]
        if loop is None or made is None or not _is_own(graph, graph.ops[made], carry):
            continue
        if graph.ops[made].loop is None and equal[_broadcast(graph, graph.ops[made])] > 1:
            begun.append((loop, graph.ops[made]))
    read: defaultdict[int, set[int]] = defaultdict(set)
    """For each loop the values from outside of all loops that its body reads."""
    for reader in graph.ops if begun else ():
        for around in graph.path(reader.loop):
            read[around].update(v for v in reader.reads if graph.loop_of[v] is None)
    for loop, zeros in begun:
        existing = [v for v in read[loop] if (maker := graph.producer[v]) is None or maker < zeros.id]
        if existing:
            yield zeros.id, min(existing, key=lambda v: (graph.values[v].size_bytes, v))


def _broadcast(graph: Graph, op: Op) -> tuple[object, ...]:
    """The same for broadcast literals that are equal to a compiler."""
    return op.detail, graph.value_signatures[op.writes[0]]


def _scattered(graph: Graph, scatter: Op, source: int) -> int:
    """The scattered value, if it precedes the zeros and is no larger; a barrier then materialises it."""
    zeros, scattered = scatter.reads[0], scatter.reads[-1]
    precedes = (graph.producer[scattered] or 0) < (graph.producer[zeros] or 0)
    is_small = graph.values[scattered].size_bytes <= graph.values[zeros].size_bytes
    return scattered if precedes and is_small else source


def _is_own(graph: Graph, zeros: Op, reader: Op) -> bool:
    """True if zeros are a broadcast literal that one op alone reads."""
    return zeros.primitive == "broadcast_in_dim" and not zeros.reads and graph.readers[zeros.writes[0]] == (reader.id,)


def _materialised_source(graph: Graph, value: int, phase: Phase) -> int | None:
    """The value itself, or the last materialised one that it is computed from in the same phase."""
    pending = {value}
    while pending:
        last = max(pending, key=lambda v: -1 if (op := graph.producer[v]) is None else op)
        producer = graph.producer[last]
        if producer is None:
            return None
        op = graph.ops[producer]
        if op.phase is phase and op.kind in _MATERIALISED:
            return last
        if op.phase is phase and op.primitive == "gather" and _is_computed_table(graph, op):
            return op.reads[0]
        pending.discard(last)
        pending.update(op.reads if op.phase is phase else ())
    return None


def _is_computed_table(graph: Graph, gather: Op) -> bool:
    """True if a gather of the same phase picks the elements of its table several times, so that this is in memory."""
    table, size_bytes = gather.reads[0], graph.values[gather.writes[0]].size_bytes
    producer = graph.producer[table]
    is_large = size_bytes >= 2 * graph.values[table].size_bytes
    return is_large and producer is not None and graph.ops[producer].phase is gather.phase


def scatters_fused_with_add(graph: Graph) -> frozenset[int]:
    """Scatters over a constant whose only reader adds the result to something, unless to another such scatter.

    An addition of the one kind is a scatter then: of `(a + scatter) + scatter` the second one is not fused.
    """
    fused, scattered = set[int](), set[int]()
    poolings = (op for op in graph.ops if op.primitive == POOLING_GRADIENT)
    adding = ((reader.id, op) for op in (*graph.scatters, *poolings) if (reader := _adding(graph, op)) is not None)
    for addition, op in sorted(adding, key=lambda each: each[0]):
        if _is_fused_with(graph, graph.ops[addition], op, scattered):
            fused.add(op.id)
            scattered.update(graph.ops[addition].writes)
    return frozenset(fused)


def _is_fused_with(graph: Graph, addition: Op, scatter: Op, scattered: Set[int]) -> bool:
    (result,) = scatter.writes
    addends = {v for v in addition.reads if v != result}
    producers = [graph.ops[op] for v in addends if (op := graph.producer[v]) is not None]
    is_scatter = any(op.kind is Kind.SCATTER and _adding(graph, op) is not None for op in producers)
    if is_scatter or not scattered.isdisjoint(addends):
        return False
    size_bytes = graph.values[result].size_bytes
    return not any(is_broadcast_over(graph, v, size_bytes) for v in addends)


def _adding(graph: Graph, scatter: Op) -> Op | None:
    """The addition that alone reads what a scatter over a constant writes, as the gradient of a pooling is."""
    if not scatter.reads or len(scatter.writes) != 1:
        return None
    if scatter.primitive == POOLING_GRADIENT:
        return only_added(graph, scatter.writes[0])
    base = graph.producer[scatter.reads[0]]
    return None if base is None or graph.ops[base].reads else only_added(graph, scatter.writes[0])


def only_added(graph: Graph, value: int) -> Op | None:
    """The addition that alone reads a value, if there is one."""
    readers = [graph.ops[op] for op in graph.readers[value]]
    is_added = len(readers) == 1 and readers[0].primitive in ("add", "add_any")
    return readers[0] if is_added else None
