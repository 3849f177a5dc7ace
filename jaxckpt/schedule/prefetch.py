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

from collections import defaultdict
from collections.abc import Iterator

from jaxckpt.ir import Decision, Graph, GraphPlan, Moved, Offload, Phase, Recompute, stage_at
from jaxckpt.ir.regions import BODY_OUTPUTS

_MOST_DESCENDANTS = 32
"""So many values computed from one are searched for one that is recomputed, which bounds the search on long chains. 8,
32 and 128 give the same plans (`python -m benchmarks.constants`)."""


ByOp = dict[int, list[int]]
"""For some ops a list of values."""


def store_ends(graph: Graph, plan: GraphPlan) -> ByOp:
    """For ops of the forward pass the values from outside of loops whose stores must be finished before (rule 1)."""
    layers, found = plan.layers or plan.stages, defaultdict[int, list[int]](list)
    for value, decision in _moved_outside(graph, plan):
        finished = stage_at(layers, graph.producer[value]) + 1
        if isinstance(decision, Offload) and finished + decision.store_distance < len(layers):
            found[layers[finished + decision.store_distance]].append(value)
    return found


def load_starts(graph: Graph, plan: GraphPlan) -> ByOp:
    """For ops of the backward the values from outside of loops whose loads start before, the last first (rule 2)."""
    outside, found = _moved_outside(graph, plan), defaultdict[int, list[int]](list)
    first_reads = first_reads_by_layer(graph, plan) if outside else {}
    for value, decision in reversed(outside):
        last = last_consumer_layer(graph, plan, value)
        distance = decision.load_distance if isinstance(decision, Offload) else 0
        reads = (first_reads[layer] for layer in range(last, last + distance + 1) if layer in first_reads)
        # In a step with two gradients a layer can be read before: by the first backward pass.
        starts = [first for first in reads if first > (graph.producer[value] or 0)]
        if starts:
            found[_behind_bodies(graph, min(starts))].append(value)
    return found


def _behind_bodies(graph: Graph, op: int) -> int:
    """An op, or the next one where it hands on what a body wrote: no barrier stands between it and the body."""
    return next(at for at in range(op, len(graph.ops)) if graph.ops[at].primitive not in BODY_OUTPUTS)


def _moved_outside(graph: Graph, plan: GraphPlan) -> list[tuple[int, Moved]]:
    moved = ((v, d) for v, d in plan.decisions.items() if graph.loop_of[v] is None)
    return [(v, d) for v, d in moved if isinstance(d, Moved)]


def first_reads_by_layer(graph: Graph, plan: GraphPlan) -> dict[int, int]:
    """For each of a plan's layers the first op after the forward pass that reads one of its decided values."""
    layers = plan.layers or plan.stages
    first_reads = {v: op for v in plan.decisions if (op := graph.first_read_after_forward[v]) is not None}
    opened: dict[int, int] = {}
    """For each stage the op that makes it recompute."""
    for value, op in first_reads.items():
        if isinstance(plan.decisions[value], Recompute):
            stage = stage_at(plan.stages, graph.producer[value])
            opened[stage] = min(op, opened.get(stage, op))
    found: dict[int, int] = {}
    for value in plan.decisions:
        layer = stage_at(layers, graph.producer[value])
        for first in (first_reads.get(value), opened.get(stage_at(plan.stages, graph.producer[value]))):
            if first is not None:
                found[layer] = min(first, found.get(layer, first))
    return found


def last_consumer_layer(graph: Graph, plan: GraphPlan, value: int) -> int:
    """The last layer whose backward needs a value: the value's own, or one that recomputes something from it."""
    layers = plan.layers or plan.stages
    last = stage_at(layers, graph.producer[value])
    for op in graph.readers[value]:
        recomputed = (isinstance(plan.decisions.get(v), Recompute) for v in _descendants(graph, op))
        if graph.ops[op].phase is Phase.FORWARD and any(recomputed):
            last = max(last, stage_at(layers, op))
    return last


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


def is_pipelined(graph: Graph, value: int, decision: Decision) -> bool:
    """True if the copies of a value are software-pipelined over the iterations of its loop.

    Iteration i then stores the value of iteration i - 1, and iteration i of the loop that reads the value loads the one
    of its next iteration. The last iteration's value stays on the device, where it is read at once. So the loop that
    reads the value must be a sibling of the loop that computes it, and run in reverse.
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
