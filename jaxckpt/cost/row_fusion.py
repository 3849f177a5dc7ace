"""Row reductions that a kernel can hold while it works: reduced and used again, as a softmax does.

Found from the structure of the graph alone; what is in memory under a plan, `fusion_analysis` finds.
Read after `jaxckpt.ir`.
"""

from math import prod

from jaxckpt.ir import Graph, Kind, Op, Phase

_KEEPS_VALUE = frozenset({"max", "min"})
"""Ops that may stand between a row's reduction and the row: a maximum begins at minus infinity."""
_LONGEST_ROW = 2**16
"""Elements of a row that one group of threads can hold. 2**13, 2**16 and 2**19 predict the same (`python -m
benchmarks.constants`)."""
_SHORT_ROW = 256
"""Rows up to this length are held through two reductions however few they are. 64, 256 and 1024 predict the same."""
_FEW_ROWS = 2**16
"""Longer rows are held where there are more than these. With 2**18 the median error of seconds is 9.0%, with 2**14 and
2**16 it is 4.0% (`python -m benchmarks.constants`). The tests of `fusion` have shapes on either side of this and of
`_SHORT_ROW`."""


def is_row_reduction(graph: Graph, op: Op) -> bool:
    """True if an op reduces the last axes of its operand, over at most `_LONGEST_ROW` elements."""
    if op.kind is not Kind.REDUCTION or len(op.reads) != 1 or len(op.writes) != 1 or op.effects:
        return False
    operand, rows = graph.values[op.reads[0]].shape, graph.values[op.writes[0]].shape
    return operand[: len(rows)] == rows and 1 < prod(operand[len(rows) :]) <= _LONGEST_ROW


def meets_its_operand(graph: Graph, op: Op) -> bool:
    """True if what was reduced meets the result itself, and not only what is computed of it (a mean, a deviation).

    All reductions of backward passes count: a softmax's gradient scales its sums.
    """
    if op.phase is not Phase.FORWARD:
        return True
    operand_bytes = graph.values[op.reads[0]].size_bytes
    pending = list(op.writes)
    while pending:
        for reader in map(graph.ops.__getitem__, graph.readers[pending.pop()]):
            if reader.kind is Kind.VIEW or reader.primitive in _KEEPS_VALUE:
                pending.extend(reader.writes)
            elif 2 * sum(graph.values[v].size_bytes for v in reader.writes) >= operand_bytes:
                return True
    return False


def unheld_exponentials(graph: Graph, rows: frozenset[int]) -> frozenset[int]:
    """Exponentials of a softmax whose rows no kernel holds through both of its reductions."""
    exponentials = (op for op in graph.ops if op.primitive == "exp" and op.phase is Phase.FORWARD)
    return frozenset(op.id for op in exponentials if _is_unheld(graph, op, rows))


def _is_unheld(graph: Graph, exponential: Op, rows: frozenset[int]) -> bool:
    """True for the exponential of a softmax (summed, divided, of what reads a row's maximum) that no kernel holds."""
    readers = [graph.ops[r] for r in graph.readers[exponential.writes[0]] if graph.ops[r].phase is Phase.FORWARD]
    sums = [reader for reader in readers if reader.id in rows]
    is_softmax = sums and len(sums) < len(readers) and _reads_reduction(graph, exponential, rows)
    return bool(is_softmax) and not _is_held_twice(graph, sums[0])


def _reads_reduction(graph: Graph, op: Op, rows: frozenset[int]) -> bool:
    """True if an op reads a row reduction through elementwise ops and views."""
    pending, seen = list(op.reads), set[int]()
    while pending:
        producer = graph.producer[pending.pop()]
        if producer is None or producer in seen:
            continue
        if producer in rows:
            return True
        seen.add(producer)
        if graph.ops[producer].kind in (Kind.ELEMENTWISE, Kind.VIEW):
            pending.extend(graph.ops[producer].reads)
    return False


def _is_held_twice(graph: Graph, total: Op) -> bool:
    """True if a kernel holds the rows of a softmax through its maximum and this sum."""
    operand, rows = (graph.values[v].shape for v in (total.reads[0], total.writes[0]))
    length = prod(operand[len(rows) :])
    is_power_of_two = length & (length - 1) == 0
    return is_power_of_two and (length <= _SHORT_ROW or graph.elements(total.writes[0]) > _FEW_ROWS)


def reductions_of(graph: Graph, ops: frozenset[int]) -> frozenset[int]:
    """Reductions of the results of some ops, directly or after elementwise ops and views."""
    found, seen = set(), set(ops)
    pending = [v for op in ops for v in graph.ops[op].writes]
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
