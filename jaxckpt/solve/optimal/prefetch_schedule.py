"""Prefetch distances of offloaded values, chosen from the bandwidth of the host link.

1. A copy is hidden if the work between its start and its first use takes as long as the copy. That work is the plan's
   as if the values stayed on the device, by the model; the copy takes its bytes over the link's bandwidth. So each way
   the smallest distance is chosen that is long enough.
2. If more copies are requested than the link carries in time, longer distances help nothing: no copy gets more than a
   quarter of the layers, since values in flight are on the device. The store of a value that is produced near the end
   of the forward pass has until that end.
3. A value of a loop body is copied within its iteration, or loaded one iteration ahead, which takes one more slice on
   the device. The latter is chosen if the step becomes faster, by the model, and the peak no higher or within a budget.
4. Layers are the model's blocks. The end of the forward pass is one more layer if little is alive there: the logits of
   the loss are then not live together with stores that have not ended.

Read after `jaxckpt.solve.full_recompute`.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf

from jaxckpt.ir import Decision, Graph, GraphPlan, Offload, Save
from jaxckpt.schedule import Run, decisions_with_axes
from jaxckpt.schedule.partition import sent_bytes
from jaxckpt.schedule.prefetch import first_reads_by_layer, is_pipelined, last_consumer_layer
from jaxckpt.solve.problem import Problem
from jaxckpt.solve.stages import StageStarts

_SMALL = 1 / 16
"""The value at the end of the forward pass counts as small if it takes at most this share of every offloaded value. No
benchmark fixed the exact value."""

_MOST_LAYERS = 4
"""Without `queued`, no distance exceeds the number of layers divided by this: it bounds the bytes of copies in flight.
No benchmark fixed the exact value."""


def with_prefetch_distances(
    problem: Problem,
    decisions: Mapping[int, Decision],
    stages: StageStarts,
    blocks: StageStarts,
    *,
    queued: bool = False,
    limit_bytes: int | None = None,
) -> GraphPlan:
    """Chooses the prefetch distances of a plan, so that copies have as much time as they need.

    Args:
      problem: The step.
      decisions: Of the plan; distances that an `Offload` has are kept.
      stages: Of the plan.
      blocks: The first op of each layer.
      queued: True if a copy also has time for the copies before it on the link, over any number of layers: for plans
        within the capacity of the link. Otherwise a copy has the time that it takes by itself.
      limit_bytes: Bytes that temporaries may take if prefetching by an iteration makes the step faster; None if the
        peak must not rise.

    Returns:
      The plan, without a prediction: each `Offload` has its distances.
    """
    decisions = decisions_with_axes(problem.graph, decisions)
    plan = GraphPlan(fingerprint=problem.graph.fingerprint, decisions=decisions, stages=stages)
    plan = _with_loop_prefetches(problem, plan, limit_bytes or 0)
    moved = {v: d for v, d in plan.decisions.items() if isinstance(d, Offload) and not _is_in_loop(problem.graph, v)}
    if not moved:
        return plan
    plan = replace(plan, layers=(*blocks, *_end(problem.graph, moved, blocks[-1])))
    clock = _Clock.of(problem, plan)
    asks = {v: last_consumer_layer(problem.graph, plan, v) for v in moved}
    deadlines = _Deadlines.of(problem, clock, moved, asks, queued=queued)
    chosen = {v: _Choice(problem, clock, deadlines, queued).of(v, d, asks[v]) for v, d in moved.items()}
    return replace(plan, decisions={**plan.decisions, **chosen})


def _is_in_loop(graph: Graph, value: int) -> bool:
    made = graph.producer[value]
    return made is not None and graph.ops[made].loop is not None


def _with_loop_prefetches(problem: Problem, plan: GraphPlan, limit_bytes: int) -> GraphPlan:
    """The plan with prefetch distances of values in loops: 0, or 1 iteration if that is faster."""
    graph = problem.graph
    in_loops = {v: d for v, d in plan.decisions.items() if isinstance(d, Offload) and _is_in_loop(graph, v)}
    if not in_loops:
        return plan
    requested = problem.offloading.prefetch
    undecided = [v for v, d in in_loops.items() if d.prefetch is None and requested is None]
    distances = {
        v: replace(d, prefetch=requested or 0, leave=0) if d.prefetch is None else d for v, d in in_loops.items()
    }
    plan = replace(plan, decisions={**plan.decisions, **distances})
    best = problem.replay(plan) if undecided else None
    for value in undecided:
        ahead = replace(in_loops[value], prefetch=1, leave=0)
        if best is None or not is_pipelined(graph, value, ahead):
            continue
        other = replace(plan, decisions={**plan.decisions, value: ahead})
        replayed = problem.replay(other)
        if replayed.step_s < best.step_s and replayed.peak_bytes <= max(best.peak_bytes, limit_bytes):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clock:
    """Start of each op in seconds; first op of each layer, and the op of its first read in the backward."""

    layers: tuple[int, ...]
    at_s: Mapping[int, float]
    touched: Mapping[int, int]

    @classmethod
    def of(cls, problem: Problem, plan: GraphPlan) -> "_Clock":
        stay = {v: Save() if isinstance(d, Offload) else d for v, d in plan.decisions.items()}
        replayed = problem.replay(replace(plan, decisions=stay))
        began_s = accumulate(replayed.seconds, initial=0.0)
        return cls(
            layers=plan.layers,
            at_s={
                s.op: t for s, t in zip(replayed.steps, began_s, strict=False) if isinstance(s, Run) and not s.is_clone
            },
            touched=first_reads_by_layer(problem.graph, plan),
        )

    def starts_s(self, asks: int, ahead: int) -> float:
        """Start of a load in seconds, for a value that a layer reads and a prefetch distance."""
        layers = range(asks, asks + ahead + 1)
        return min((self.at_s[self.touched[layer]] for layer in layers if layer in self.touched), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deadlines:
    """For each value the end of its store and the latest start of its load, in seconds from the start of the step."""

    left_s: Mapping[int, float]
    back_s: Mapping[int, float]

    @classmethod
    def of(
        cls, problem: Problem, clock: _Clock, moved: Mapping[int, Offload], asks: Mapping[int, int], *, queued: bool
    ) -> "_Deadlines":
        """Deadlines of values by the layer that reads them; queued copies run one after the other, each way."""
        producer = problem.graph.producer
        made_s = {v: clock.at_s[made] for v in asks if (made := producer[v]) is not None}
        needed_s = {v: clock.at_s[clock.touched[layer]] if layer in clock.touched else inf for v, layer in asks.items()}
        left_s: dict[int, float] = {}
        back_s: dict[int, float] = {}
        out_s, in_s = 0.0, inf
        for value in sorted(asks, key=lambda v: (made_s[v], v)):
            out_s = (max(out_s, made_s[value]) if queued else made_s[value]) + _copy_s(problem, value, moved[value])
            left_s[value] = out_s
        for value in sorted(asks, key=lambda v: (-needed_s[v], v)):
            in_s = (min(in_s, needed_s[value]) if queued else needed_s[value]) - _copy_s(problem, value, moved[value])
            back_s[value] = in_s
        return cls(left_s=left_s, back_s=back_s)


def _copy_s(problem: Problem, value: int, decision: Offload) -> float:
    return sent_bytes(problem.graph, value, decision) / problem.rates.host_bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True)
class _Choice:
    """Converts deadlines to prefetch distances."""

    problem: Problem
    clock: _Clock
    deadlines: _Deadlines
    queued: bool

    def of(self, value: int, decision: Offload, asks: int) -> Offload:
        """The decision for a value, with the distances that it left open."""
        clock, layers = self.clock, len(self.clock.layers)
        home = max(0, bisect_right(clock.layers, self.problem.graph.producer[value] or 0) - 1)
        behind = max(0, layers - 2 - home)
        most = layers if self.queued else max(1, layers // _MOST_LAYERS)
        prefetch = self.problem.offloading.prefetch if decision.prefetch is None else decision.prefetch
        leave = prefetch if decision.leave is None else decision.leave
        if leave is None:
            left_s = self.deadlines.left_s[value]
            enough = (k for k in range(min(most, behind)) if clock.at_s[clock.layers[home + 1 + k]] >= left_s)
            leave = next(enough, most)
        if prefetch is None:
            back_s = self.deadlines.back_s[value]
            prefetch = next((k for k in range(most) if clock.starts_s(asks, k) <= back_s), most)
        return replace(decision, prefetch=prefetch, leave=min(leave, behind))
