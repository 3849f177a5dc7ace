"""When values that wait elsewhere must have left, and when they start on their way back.

The clock is that of a plan's layers (its stages, where it has none). A value of layer l whose copy out may take k
layers has left when layer l + k has run. One whose copy back may take k layers starts when the backward first asks for
anything decided of layer l + k, or of a layer between: so each copy has k layers of work to hide behind. What a stage
computes again it computes at once, so all of it is asked for when the first of it is. A value of the last k layers is
not waited for: the backward comes too soon.

In the body of a loop each turn moves its own value, and layers are turns: `is_pipelined` says whether a turn moves
that of the one before.

Read after `plan`; `schedule` carries it out. Complexity: linear in decisions and their readers, times the layers that a
copy may take.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jaxckpt.ir.decision import Decision, Offload, Partition, Recompute
from jaxckpt.ir.graph import Graph, Phase
from jaxckpt.ir.plan import GraphPlan

_LOOK_AHEAD = 32
"""So many values behind a reader are looked at for one that is computed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferTimes:
    """The times of values that wait elsewhere.

    Attributes:
      values: Those values.
      store_before: For an op of the forward pass the values whose copies must be done before it.
      load_before: For an op of the backward the values that start to come back before it, the last made first.
    """

    values: frozenset[int]
    store_before: Mapping[int, tuple[int, ...]]
    load_before: Mapping[int, tuple[int, ...]]


def transfer_times(graph: Graph, plan: GraphPlan) -> TransferTimes:
    """Finds the times for the values that a plan offloads or partitions."""
    moved = {v: d for v, d in plan.decisions.items() if isinstance(d, Offload | Partition)}
    if not moved:
        return TransferTimes(values=frozenset(), store_before={}, load_before={})
    leave: defaultdict[int, list[int]] = defaultdict(list)
    fetch: defaultdict[int, list[int]] = defaultdict(list)
    layers = plan.layers or plan.stages
    home = {v: _index(layers, graph, v) for v in plan.decisions}
    touched = first_reads_by_layer(graph, plan)
    for value, decision in moved.items():
        made = graph.producer[value]
        if made is not None and graph.ops[made].loop is not None:
            continue
        ahead = decision.load_distance if isinstance(decision, Offload) else 0
        if isinstance(decision, Offload):
            left = home[value] + 1 + decision.store_distance
            if left < len(layers):
                leave[layers[left]].append(value)
        asks = last_consumer_layer(graph, plan, value)
        times = [touched[layer] for layer in range(asks, asks + ahead + 1) if layer in touched]
        if times:
            fetch[min(times)].append(value)
    return TransferTimes(
        values=frozenset(moved),
        store_before={op: tuple(values) for op, values in leave.items()},
        load_before={op: tuple(sorted(values, reverse=True)) for op, values in fetch.items()},
    )


def first_reads_by_layer(graph: Graph, plan: GraphPlan) -> dict[int, int]:
    """For each of a plan's layers the first op after the forward pass that asks for one of its decided values."""
    layers = plan.layers or plan.stages
    asked: dict[int, int] = {}
    for value in plan.decisions:
        late = next((r for r in graph.readers[value] if graph.ops[r].phase is not Phase.FORWARD), None)
        if late is not None:
            asked[value] = late
    opened: dict[int, int] = {}
    for value, op in asked.items():
        if isinstance(plan.decisions[value], Recompute):
            stage = _index(plan.stages, graph, value)
            opened[stage] = min(op, opened.get(stage, op))
    touched: dict[int, int] = {}
    for value in plan.decisions:
        times = [t for t in (asked.get(value), opened.get(_index(plan.stages, graph, value))) if t is not None]
        if times:
            layer = _index(layers, graph, value)
            touched[layer] = min(*times, touched.get(layer, times[0]))
    return touched


def last_consumer_layer(graph: Graph, plan: GraphPlan, value: int) -> int:
    """The last layer whose backward asks for a value: its own, or one that computes something again from it."""
    layers = plan.layers or plan.stages
    forward = (op for op in graph.readers[value] if graph.ops[op].phase is Phase.FORWARD)
    again = (op for op in forward if any(isinstance(plan.decisions.get(v), Recompute) for v in _made_from(graph, op)))
    return max([_index(layers, graph, value), *(bisect_right(layers, op) - 1 for op in again)])


def _made_from(graph: Graph, op: int) -> Iterator[int]:
    """What an op makes, and the next values that are made of that."""
    seen: set[int] = set()
    pending = [op]
    while pending and len(seen) < _LOOK_AHEAD:
        at = pending.pop(0)
        for value in graph.ops[at].writes:
            if value not in seen:
                seen.add(value)
                yield value
                pending.extend(r for r in graph.readers[value] if graph.ops[r].phase is Phase.FORWARD)


def _index(starts: tuple[int, ...], graph: Graph, value: int) -> int:
    made = graph.producer[value]
    return max(0, bisect_right(starts, -1 if made is None else made) - 1)


def is_pipelined(graph: Graph, value: int, decision: Decision) -> bool:
    """Whether the turns of a loop move a value a turn ahead: out in the next turn, back in the one before it is read.

    The loop that reads the value must turn the other way, beside the one that makes it. Turn i of the one then sends
    what turn i - 1 made, turn i of the other fetches the same for its next one, and the last turn's value stays on the
    device, where it is wanted at once.

    Args:
      graph: The step.
      value: What moves.
      decision: How.
    """
    made = graph.producer[value]
    if not isinstance(decision, Offload) or not decision.prefetch or made is None:
        return False
    home = graph.ops[made].loop
    return (
        home is not None
        and graph.loops[home].rolled
        and all(_is_twin(graph, home, loop) for loop in _loops_reading(graph, value, home))
    )


def _is_twin(graph: Graph, home: int, loop: int | None) -> bool:
    if loop is None:
        return False
    one, other = graph.loops[home], graph.loops[loop]
    return (one.parent, one.length, one.reverse) == (other.parent, other.length, not other.reverse)


def _loops_reading(graph: Graph, value: int, home: int) -> set[int | None]:
    """The loops in whose bodies something late reads a value of another loop, or what that loop makes of it."""
    found: set[int | None] = set()
    seen, pending = {value}, [value]
    while pending:
        for op in (graph.ops[reader] for reader in graph.readers[pending.pop()]):
            if op.phase is not Phase.FORWARD:
                found.add(next((around for around in graph.path(op.loop) if _is_twin(graph, home, around)), op.loop))
            elif op.loop == home:
                pending.extend(v for v in op.writes if v not in seen)
                seen.update(op.writes)
    return found
