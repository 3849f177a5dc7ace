"""Prefetch distances of offloaded values, chosen from the bandwidth of the host link.

1. A copy is hidden if the work between its start and its first use, by the model as if the values stayed on the device,
   takes as long as its bytes over the link's bandwidth. Each way the smallest distance is chosen that is long enough;
   that of a store is at least 1, as XLA's scheduler for GPUs may start a store only with the next one.
2. If more copies are requested than the link carries in time, longer distances help nothing: no copy gets more than a
   quarter of the layers, since values in flight are on the device. The store of a value that is produced near the end
   of the forward pass has until that end.
3. A value of a loop body is copied within its iteration, or loaded one iteration ahead, which takes one more slice on
   the device. The latter is chosen if the step becomes faster, by the model, and the peak no higher or within a budget.
4. All loads whose distance is open have one distance, of those that these rules ask for or between: that of the
   fastest step. XLA's scheduler for GPUs gives no load more time before its reader than the load that starts next
   (`jaxckpt.cost.load_starts`), so the shortest distance limits the others.
5. Layers are the model's blocks. The end of the forward pass is one more layer if little is alive there: the logits of
   the loss are then not live together with stores that have not ended.

Read after `jaxckpt.solve.full_recompute`.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import accumulate
from math import inf

from jaxckpt.ir import Decision, Graph, GraphPlan, Offload, Save, stage_at
from jaxckpt.schedule import Run, decisions_with_axes
from jaxckpt.schedule.partition import sent_bytes
from jaxckpt.schedule.prefetch import first_reads_by_layer, is_pipelined, last_consumer_layer
from jaxckpt.solve.problem import Problem
from jaxckpt.solve.stages import StageStarts

_SMALL = 1 / 16
"""The value at the end of the forward pass counts as small if it takes at most this share of every offloaded value.
With 0 plans of a policy that offloads are 0.8% slower, with 1/4 the same (`python -m benchmarks.constants`)."""

_MOST_LAYERS = 4
"""Without `queued`, no distance exceeds the number of layers divided by this: it bounds the bytes of copies in flight.
2 and 8 give the same plans (`python -m benchmarks.constants`)."""


def with_prefetch_distances(
    problem: Problem,
    decisions: Mapping[int, Decision],
    stages: StageStarts,
    blocks: StageStarts,
    *,
    queued: bool = False,
    limit_bytes: int | None = None,
) -> GraphPlan:
    """The plan of some decisions, without a prediction: each `Offload` has the distances that its copies need.

    `queued` gives a copy also the time of the copies before it on the link, over any number of layers: for plans within
    the capacity of the link. `limit_bytes` are bytes that temporaries may take if prefetching by an iteration makes the
    step faster; None if the peak must not rise.
    """
    graph = problem.graph
    plan = GraphPlan(fingerprint=graph.fingerprint, decisions=decisions_with_axes(graph, decisions), stages=stages)
    plan = _with_loop_prefetches(problem, plan, limit_bytes or 0)
    moved = {v: d for v, d in plan.decisions.items() if isinstance(d, Offload) and graph.loop_of[v] is None}
    if not moved:
        return plan
    plan = replace(plan, layers=(*blocks, *_end(graph, moved, blocks[-1])))
    open_loads = {v for v, d in moved.items() if d.prefetch is None and problem.offloading.prefetch is None}
    clock = _Clock(problem, plan, moved, queued=queued)
    timed = {v: clock.timed(v, d) for v, d in moved.items()}
    return _with_one_distance(problem, replace(plan, decisions={**plan.decisions, **timed}), open_loads, limit_bytes)


def _with_one_distance(
    problem: Problem, plan: GraphPlan, values: Collection[int], limit_bytes: int | None
) -> GraphPlan:
    """The plan with one distance for the loads of some values: the smallest of the fastest step, of those that fit."""
    asked = {v: d for v, d in plan.decisions.items() if isinstance(d, Offload) and v in values}
    distances = {d.load_distance for d in asked.values()}
    if len(distances) < 2:
        return plan

    def excess_and_seconds(each: GraphPlan) -> tuple[int, float]:
        replayed = problem.replay(each)
        excess_bytes = 0 if limit_bytes is None else max(0, replayed.heap_bytes - limit_bytes)
        return excess_bytes, replayed.step_s

    same = ({v: replace(d, prefetch=k) for v, d in asked.items()} for k in range(min(distances), max(distances) + 1))
    return min((replace(plan, decisions={**plan.decisions, **each}) for each in same), key=excess_and_seconds)


def _with_loop_prefetches(problem: Problem, plan: GraphPlan, limit_bytes: int) -> GraphPlan:
    """The plan with prefetch distances of values in loops: 0, or 1 iteration if that is faster."""
    # Complexity: values are tried one after the other, each against the best so far.
    graph, requested = problem.graph, problem.offloading.prefetch
    offloaded = ((v, d) for v, d in plan.decisions.items() if isinstance(d, Offload) and d.prefetch is None)
    undecided = {v: replace(d, prefetch=requested or 0, leave=0) for v, d in offloaded if graph.loop_of[v] is not None}
    plan = replace(plan, decisions={**plan.decisions, **undecided})
    ahead = {v: replace(d, prefetch=1) for v, d in undecided.items()}
    pipelined = [v for v, d in ahead.items() if is_pipelined(graph, v, d)]
    if requested is not None or not pipelined:
        return plan
    best = problem.replay(plan)
    for value in pipelined:
        other = replace(plan, decisions={**plan.decisions, value: ahead[value]})
        replayed = problem.replay(other)
        if replayed.step_s < best.step_s and replayed.heap_bytes <= max(best.heap_bytes, limit_bytes):
            plan, best = other, replayed
    return plan


def _end(graph: Graph, moved: Mapping[int, Offload], last: int) -> tuple[int, ...]:
    """The op after the end of the forward pass, if the value there is small, so that waiting at it costs little."""
    end = graph.forward_end
    made = None if end is None else graph.producer[end]
    if end is None or made is None or made <= last:
        return ()
    small = graph.values[end].size_bytes <= _SMALL * min(graph.values[v].size_bytes for v in moved)
    return (made + 1,) if small else ()


def _copied(ready_s: Mapping[int, float], copy_s: Mapping[int, float], *, queued: bool) -> dict[int, float]:
    """Ends of copies by value; queued copies run one after the other, others as if alone. Loads run in reverse time."""
    ends_s: dict[int, float] = {}
    end_s = -inf
    for value in sorted(ready_s, key=lambda v: (ready_s[v], v)):
        end_s = (max(end_s, ready_s[value]) if queued else ready_s[value]) + copy_s[value]
        ends_s[value] = end_s
    return ends_s


class _Clock:
    """Times of a plan as if the values stayed on the device, in seconds from the start of the step.

    Attributes:
      at_s: Start of each op.
      stored_s: End of the store of each moved value.
      load_s: Latest start of the load of each moved value.
    """

    def __init__(self, problem: Problem, plan: GraphPlan, moved: Mapping[int, Offload], *, queued: bool):
        # Complexity: one line for each time that `timed` reads.
        self.problem, self.layers, self.queued = problem, plan.layers, queued
        stay = {v: Save() if isinstance(d, Offload) else d for v, d in plan.decisions.items()}
        replayed = problem.replay(replace(plan, decisions=stay))
        starts = zip(replayed.steps, accumulate(replayed.seconds, initial=0.0), strict=False)
        self.at_s = {s.op: t for s, t in starts if isinstance(s, Run) and not s.is_clone}
        self.first_read = first_reads_by_layer(problem.graph, plan)
        self.consumer = {v: last_consumer_layer(problem.graph, plan, v) for v in moved}
        made_s = {v: self.at_s[problem.graph.producer[v] or 0] for v in moved}
        needed_s = {v: -self._read_s(layer) for v, layer in self.consumer.items()}
        bandwidth = problem.rates.host_bandwidth_bytes_per_s
        copy_s = {v: sent_bytes(problem.graph, v, d) / bandwidth for v, d in moved.items()}
        self.stored_s = _copied(made_s, copy_s, queued=queued)
        self.load_s = {v: -end_s for v, end_s in _copied(needed_s, copy_s, queued=queued).items()}

    def _read_s(self, layer: int) -> float:
        """Start of a layer's first read in the backward; infinite if there is none."""
        return self.at_s[self.first_read[layer]] if layer in self.first_read else inf

    def timed(self, value: int, decision: Offload) -> Offload:
        """The decision for a value, with the distances that it left open."""
        # Complexity: the same choice for stores and for loads, which count layers in opposite directions.
        layers = len(self.layers)
        home = stage_at(self.layers, self.problem.graph.producer[value])
        behind = max(0, layers - 2 - home)
        most = layers if self.queued else max(1, layers // _MOST_LAYERS)
        prefetch = self.problem.offloading.prefetch if decision.prefetch is None else decision.prefetch
        leave = prefetch if decision.leave is None else decision.leave
        if leave is None:
            ends_s = (self.at_s[op] for op in self.layers[home + 2 : home + 1 + min(most, behind)])
            leave = next((k for k, end_s in enumerate(ends_s, 1) if end_s >= self.stored_s[value]), most)
        if prefetch is None:
            layer = self.consumer[value]
            starts_s = accumulate((self._read_s(each) for each in range(layer, layer + most)), min)
            prefetch = next((k for k, start_s in enumerate(starts_s) if start_s <= self.load_s[value]), most)
        return replace(decision, prefetch=prefetch, leave=min(leave, behind))
