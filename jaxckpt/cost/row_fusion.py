"""What a kernel may hold while it works: rows that are reduced and used again, as a softmax does.

Graph structure alone decides here; what is in memory under a plan, `fusion` says. Read after `jaxckpt.ir`.
"""

from math import prod

from jaxckpt.ir import Graph, Kind, Op, Phase

_AS_IT_IS = frozenset({"max", "min"})
"""What may stand between a row's figure and the row: a maximum begins at minus infinity."""
_LONGEST_ROW = 2**16
"""Elements of a row that one group of threads can hold."""
_SHORT_ROW = 256
"""Rows up to this length are held through two reductions however few they are."""
_FEW_ROWS = 2**16
"""Longer ones are where there are more than these."""


def is_row(graph: Graph, op: Op) -> bool:
    """Whether an op reduces the last axes of its operand, over at most `_LONGEST_ROW` elements."""
    if op.kind is not Kind.REDUCTION or len(op.reads) != 1 or len(op.writes) != 1 or op.effects:
        return False
    whole, rows = graph.values[op.reads[0]].shape, graph.values[op.writes[0]].shape
    return whole[: len(rows)] == rows and 1 < prod(whole[len(rows) :]) <= _LONGEST_ROW


def is_used_as_it_is(graph: Graph, op: Op) -> bool:
    """Whether what is reduced meets the result itself, and not only what is made of it (a mean, a deviation).

    Backward passes are taken as they come: a softmax's gradient scales its sums.
    """
    if op.phase is not Phase.FORWARD:
        return True
    whole_bytes = graph.values[op.reads[0]].size_bytes
    pending = list(op.writes)
    while pending:
        for reader in map(graph.ops.__getitem__, graph.readers[pending.pop()]):
            if reader.kind is Kind.VIEW or reader.primitive in _AS_IT_IS:
                pending.extend(reader.writes)
            elif 2 * sum(graph.values[v].size_bytes for v in reader.writes) >= whole_bytes:
                return True
    return False


def between_passes(graph: Graph, rows: frozenset[int]) -> frozenset[int]:
    """Exponentials of a softmax whose rows no kernel holds through both of its reductions."""
    found = set()
    for op in graph.ops:
        if op.primitive != "exp" or op.phase is not Phase.FORWARD:
            continue
        readers = [graph.ops[r] for r in graph.readers[op.writes[0]] if graph.ops[r].phase is Phase.FORWARD]
        sums = [reader for reader in readers if reader.id in rows]
        is_softmax = sums and len(sums) < len(readers) and _comes_after(graph, op, rows)
        if is_softmax and not _holds_twice(graph, sums[0]):
            found.add(op.id)
    return frozenset(found)


def _comes_after(graph: Graph, op: Op, rows: frozenset[int]) -> bool:
    """Whether an op reads a reduction of rows through elementwise work and views."""
    pending, seen = list(op.reads), set[int]()
    while pending:
        made = graph.producer[pending.pop()]
        if made is None or made in seen:
            continue
        if made in rows:
            return True
        seen.add(made)
        if graph.ops[made].kind in (Kind.ELEMENTWISE, Kind.VIEW):
            pending.extend(graph.ops[made].reads)
    return False


def _holds_twice(graph: Graph, total: Op) -> bool:
    whole, rows = (graph.values[v].shape for v in (total.reads[0], total.writes[0]))
    length = prod(whole[len(rows) :])
    return length & (length - 1) == 0 and (length <= _SHORT_ROW or graph.elements(total.writes[0]) > _FEW_ROWS)


def reducing(graph: Graph, made: frozenset[int]) -> frozenset[int]:
    """Reductions of what some ops make, as it is or after elementwise work."""
    found, seen = set(), set(made)
    pending = [v for op in made for v in graph.ops[op].writes]
    while pending:
        for reader in graph.readers[pending.pop()]:
            if reader in seen:
                continue
            seen.add(reader)
            if graph.ops[reader].kind is Kind.REDUCTION:
                found.add(reader)
            elif graph.ops[reader].kind in (Kind.ELEMENTWISE, Kind.VIEW):
                pending.extend(graph.ops[reader].writes)
    return frozenset(found)
