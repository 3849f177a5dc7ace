"""Argument-derived values: made of arguments by views and elementwise ops alone: a transposed parameter, a mask.

Values after the forward pass are in `made_of_arguments`, too, and not in `argument_derived_values`, which is for what a
plan may save. `jaxckpt.linter.loops` has the same rule for the jaxpr of one loop's body, whose arguments are
those of the body, and `jaxckpt.trace.graph` for a graph that it is still building. Read after `jaxckpt.ir`.
"""

from collections.abc import Collection
from math import prod

from jaxckpt.ir import Graph, Kind, Op, Phase

_BROADCAST = 1 / 8
"""A value is a broadcast where the arguments that it is made of take at most this share of its bytes: a mask or zeros
repeat a small array many times, a cast or transposed parameter does not. 1/32, 1/8 and 1/2 predict the same (`python -m
benchmarks.constants`)."""


def argument_derived_values(graph: Graph) -> frozenset[int]:
    """All argument-derived values of the forward pass, the arguments and constants themselves too."""
    derived = {*graph.inputs, *graph.constants}
    for op in graph.ops:
        is_cheap = op.kind in (Kind.VIEW, Kind.ELEMENTWISE) and not op.effects
        if is_cheap and op.phase is Phase.FORWARD and derived.issuperset(op.reads):
            derived.update(op.writes)
    return frozenset(derived)


def made_of_arguments(graph: Graph) -> frozenset[int]:
    """All values that views and elementwise ops alone make of arguments, those after the forward pass too."""
    made = {*graph.inputs, *graph.constants}
    for op in graph.ops:
        if op.kind in (Kind.VIEW, Kind.ELEMENTWISE) and made.issuperset(op.reads):
            made.update(op.writes)
    return frozenset(made)


def _roots(graph: Graph, value: int) -> set[int]:
    """The arguments that a value is made of."""
    pending, seen, roots = [value], set[int](), set[int]()
    while pending:
        read = pending.pop()
        made = graph.producer[read]
        if made is None:
            roots.add(read)
        elif made not in seen:
            seen.add(made)
            pending.extend(graph.ops[made].reads)
    return roots


def is_broadcast(graph: Graph, value: int) -> bool:
    """True if a value is derived from arguments that are much smaller: a mask, zeros.

    The body of a loop that reads such a value computes it; the value need never be in memory.
    """
    most_bytes = _BROADCAST * graph.values[value].size_bytes
    return value in graph.once(made_of_arguments) and graph.size_bytes(_roots(graph, value)) <= most_bytes


def is_broadcast_over(graph: Graph, value: int, size_bytes: int) -> bool:
    """True if an array of `size_bytes` repeats `value`: a smaller array, or a view that repeats one or a constant."""
    if graph.values[value].size_bytes < size_bytes:
        return True
    made = graph.producer[value]
    if made is None or graph.ops[made].kind is not Kind.VIEW:
        return False
    reads = graph.ops[made].reads
    return not reads or is_broadcast_over(graph, reads[0], size_bytes)


def arguments_only_broadcast(graph: Graph, clones: Collection[int]) -> set[int]:
    """Arguments that some clones repeat over other arrays and do nothing else with: a bias, a scale.

    They wait for no barrier, since what they are repeated over does. XLA applies a bias or a scale in the product that
    reads the result only where it is a broadcast of an argument itself, not of what a barrier passes on.
    """
    # One pass: a view is known by the argument that it shows, as found so far.
    repeated, others = set[int](), set[int]()
    shown: dict[int, int] = {}
    """For each view of one argument the argument."""
    for op in map(graph.ops.__getitem__, sorted(clones)):
        shown.update({v: v for v in op.reads if graph.producer[v] is None})
        if shown.keys().isdisjoint(op.reads):
            continue
        if op.kind is Kind.VIEW and len(op.reads) == 1 and op.reads[0] in shown:
            shown.update(dict.fromkeys(op.writes, shown[op.reads[0]]))
            continue
        meets_others = op.kind is Kind.ELEMENTWISE and not shown.keys() >= {*op.reads}
        for read in shown.keys() & {*op.reads}:
            is_repeated = prod(graph.values[shown[read]].shape) < prod(graph.values[op.writes[0]].shape)
            (repeated if meets_others and is_repeated else others).add(shown[read])
    return repeated - others


def is_view_of(graph: Graph, op: Op) -> bool:
    """True if an op is a view of one array of the same size."""
    if op.kind is not Kind.VIEW or len(op.reads) != 1 or len(op.writes) != 1:
        return False
    return graph.values[op.reads[0]].size_bytes == graph.values[op.writes[0]].size_bytes
