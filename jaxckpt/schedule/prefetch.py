"""Prefetch distances as times: before which op a store must be finished, and before which a load starts.

Distances count layers (stages, where a plan has no layers), so that each copy has k layers of work to hide behind:

1. A value of layer l with store distance k has been stored before layer l + 1 + k begins. The forward pass does not
   wait for values of the last layers: the backward comes too soon.
2. A value that layer l is the last to need is loaded, with load distance k, before the backward first reads a decided
   value of one of the layers l to l + k. A stage reads all that it recomputes when it reads the first of it.
3. In the body of a loop each iteration copies its own value, and iterations take the place of layers (`is_pipelined`).

Read after `jaxckpt.ir`; `transfers` writes the copies. Complexity: linear in decisions and readers, times the
distances.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from jaxckpt.ir.decision import Decision, Offload, Partition, Recompute
from jaxckpt.ir.graph import Graph, Phase
from jaxckpt.ir.plan import GraphPlan

_MOST_DESCENDANTS = 32
"""So many values computed from one are searched for one that is recomputed. Bounds the search on long chains; no
benchmark fixed the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferTimes:
    """Times of the copies of offloaded and partitioned values.

    Attributes:
      values: Those values.
      store_before: For an op of the forward pass the values whose stores must be finished before it.
      load_before: For an op of the backward the values whose loads start before it, the last computed first.
    """

    values: frozenset[int]
    store_before: Mapping[int, tuple[int, ...]]
    load_before: Mapping[int, tuple[int, ...]]


def transfer_times(graph: Graph, plan: GraphPlan) -> TransferTimes:
    """Times for the values that a plan offloads or partitions."""
    moved = {v: d for v, d in plan.decisions.items() if isinstance(d, Offload | Partition)}
    if not moved:
        return TransferTimes(values=frozenset(), store_before={}, load_before={})
    first_reads = first_reads_by_layer(graph, plan)
    outside = [(v, d) for v, d in moved.items() if graph.loop_of[v] is None]
    return TransferTimes(
        values=frozenset(moved),
        store_before=_by_op((_store_end(graph, plan, v, d), v) for v, d in outside),
        load_before=_by_op((_load_start(graph, plan, first_reads, v, d), v) for v, d in reversed(outside)),
    )


def _by_op(times: Iterable[tuple[int | None, int]]) -> dict[int, tuple[int, ...]]:
    found: defaultdict[int, list[int]] = defaultdict(list)
    for op, value in times:
        if op is not None:
            found[op].append(value)
    return {op: tuple(values) for op, values in found.items()}


def _store_end(graph: Graph, plan: GraphPlan, value: int, decision: Offload | Partition) -> int | None:
    """The op before which the store of an offloaded value must be finished (rule 1)."""
    layers = plan.layers or plan.stages
    if not isinstance(decision, Offload):
        return None
    finished = _index(layers, graph, value) + 1 + decision.store_distance
    return layers[finished] if finished < len(layers) else None


def _load_start(
    graph: Graph, plan: GraphPlan, first_reads: Mapping[int, int], value: int, decision: Offload | Partition
) -> int | None:
    """The op before which a load starts (rule 2)."""
    last = last_consumer_layer(graph, plan, value)
    distance = decision.load_distance if isinstance(decision, Offload) else 0
    layers = range(last, last + distance + 1)
    return min((first_reads[layer] for layer in layers if layer in first_reads), default=None)


def first_reads_by_layer(graph: Graph, plan: GraphPlan) -> dict[int, int]:
    """For each of a plan's layers the first op after the forward pass that reads one of its decided values."""
    layers = plan.layers or plan.stages
    first_reads = {v: op for v in plan.decisions if (op := _first_read(graph, v)) is not None}
    opened: dict[int, int] = {}
    """For each stage the op that makes it recompute."""
    for value, op in first_reads.items():
        if isinstance(plan.decisions[value], Recompute):
            stage = _index(plan.stages, graph, value)
            opened[stage] = min(op, opened.get(stage, op))
    found: dict[int, int] = {}
    for value in plan.decisions:
        layer = _index(layers, graph, value)
        for op in (first_reads.get(value), opened.get(_index(plan.stages, graph, value))):
            if op is not None:
                found[layer] = min(op, found.get(layer, op))
    return found


def _first_read(graph: Graph, value: int) -> int | None:
    return next((op for op in graph.readers[value] if graph.ops[op].phase is not Phase.FORWARD), None)


def last_consumer_layer(graph: Graph, plan: GraphPlan, value: int) -> int:
    """The last layer whose backward needs a value: the value's own, or one that recomputes something from it."""
    layers = plan.layers or plan.stages
    consumers = (
        op
        for op in graph.readers[value]
        if graph.ops[op].phase is Phase.FORWARD
        and any(isinstance(plan.decisions.get(v), Recompute) for v in _descendants(graph, op))
    )
    return max([_index(layers, graph, value), *(bisect_right(layers, op) - 1 for op in consumers)])


def _descendants(graph: Graph, op: int) -> Iterator[int]:
    """Results of an op and of the forward ops that read them, breadth first, up to a bound."""
    seen: set[int] = set()
    pending = [op]
    while pending and len(seen) < _MOST_DESCENDANTS:
        for value in graph.ops[pending.pop(0)].writes:
            if value not in seen:
                seen.add(value)
                yield value
                pending.extend(r for r in graph.readers[value] if graph.ops[r].phase is Phase.FORWARD)


def _index(starts: tuple[int, ...], graph: Graph, value: int) -> int:
    """The layer (or stage) that computes a value, by the first ops of all; 0 for arguments."""
    producer = graph.producer[value]
    return max(0, bisect_right(starts, -1 if producer is None else producer) - 1)


def is_pipelined(graph: Graph, value: int, decision: Decision) -> bool:
    """True if the copies of a value are software-pipelined over the iterations of its loop.

    Iteration i then stores the value of iteration i - 1, and iteration i of the loop that reads the value loads the one
    of its next iteration. The last iteration's value stays on the device, where it is read at once. So the loop that
    reads the value must be a sibling of the loop that computes it, and run in reverse.

    Args:
      graph: The step.
      value: The value.
      decision: The decision for it.
    """
    home = graph.loop_of[value]
    if not isinstance(decision, Offload) or not decision.prefetch or home is None:
        return False
    return graph.loops[home].rolled and all(_mirrors(graph, home, loop) for loop in _loops_reading(graph, value, home))


def _mirrors(graph: Graph, home: int, loop: int | None) -> bool:
    """True if a loop is a sibling of another one, as long, and runs in reverse."""
    if loop is None:
        return False
    one, other = graph.loops[home], graph.loops[loop]
    return (one.parent, one.length, one.reverse) == (other.parent, other.length, not other.reverse)


def _loops_reading(graph: Graph, value: int, home: int) -> set[int | None]:
    """Loops whose ops after the forward pass read a value of the loop `home`, or what that loop computes from it."""
    found: set[int | None] = set()
    seen, pending = {value}, [value]
    while pending:
        for op in (graph.ops[reader] for reader in graph.readers[pending.pop()]):
            if op.phase is not Phase.FORWARD:
                found.add(next((around for around in graph.path(op.loop) if _mirrors(graph, home, around)), op.loop))
            elif op.loop == home:
                pending.extend(v for v in op.writes if v not in seen)
                seen.update(op.writes)
    return found
