"""How many layers the copies of offloaded values may take, chosen from what the link to the host carries.

A copy is hidden where the work between its start and the moment at which somebody waits for it takes as long as the
copy. The work is that of the plan as if these values stayed on the device, by the model; the copy takes its bytes over
the link's bandwidth. So each way the fewest layers are chosen that are long enough, but never more than a quarter of
them: what is in flight is on the device. What is made too late in the forward pass has until its end.

The layers are a model's blocks, and the end of the forward pass where little is alive there: the loss's own logits then
need not stand beside copies that have not left. Read after `full`.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from jaxckpt.ir import Decision, Graph, Offload, Plan, Run, Save
from jaxckpt.ir.away import asking_layer, first_touches
from jaxckpt.solve.problem import Problem
from jaxckpt.solve.stages import Stages

_SMALL = 1 / 16
"""What is waited at behind the forward pass takes at most this share of the smallest value that moves."""

_MOST_LAYERS = 4
"""Copies may take at most the layers over this."""


def timed(problem: Problem, decisions: Mapping[int, Decision], stages: Stages, blocks: Stages) -> Plan:
    """A plan whose copies have as much time as they need.

    Args:
      problem: The step.
      decisions: Of the plan; what an `Offload` says of its layers is kept.
      stages: Of the plan.
      blocks: The ids of the ops at which layers begin.

    Returns:
      The plan, without a prediction: each `Offload` says how many layers its copies may take.
    """
    plan = Plan(fingerprint=problem.graph.fingerprint, decisions=decisions, stages=stages)
    moved = {v: d for v, d in decisions.items() if isinstance(d, Offload)}
    if not moved:
        return plan
    plan = replace(plan, layers=(*blocks, *_end(problem.graph, moved, blocks[-1])))
    clock = _Clock.of(problem, plan)
    chosen = {v: _chosen(problem, clock, plan, v) for v in moved}
    return replace(plan, decisions={**decisions, **chosen})


def _end(graph: Graph, moved: Mapping[int, Offload], last: int) -> tuple[int, ...]:
    """The op behind the end of the forward pass, where a copy can be waited for at little cost."""
    end = graph.forward_end
    made = None if end is None else graph.producer[end]
    if end is None or made is None or made <= last:
        return ()
    small = graph.values[end].size_bytes <= _SMALL * min(graph.values[v].size_bytes for v in moved)
    return (made + 1,) if small else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clock:
    """When each op runs, seconds from the start of the step; when layers begin, and when the backward asks for them."""

    layers: tuple[int, ...]
    at_s: Mapping[int, float]
    touched: Mapping[int, int]

    @classmethod
    def of(cls, problem: Problem, plan: Plan) -> "_Clock":
        stay = {v: Save() if isinstance(d, Offload) else d for v, d in plan.decisions.items()}
        replayed = problem.replay(replace(plan, decisions=stay))
        began_s = accumulate(replayed.seconds, initial=0.0)
        return cls(
            layers=plan.layers,
            at_s={s.op: t for s, t in zip(replayed.steps, began_s, strict=False) if isinstance(s, Run) and not s.again},
            touched=first_touches(problem.graph, plan),
        )

    def out_s(self, made: int, left: int) -> float:
        """Seconds between the op that makes a value and a layer before which it has left."""
        return self.at_s[self.layers[left]] - self.at_s[made]

    def back_s(self, home: int, ahead: int) -> float:
        """Seconds between the moments at which the backward asks for two layers."""
        times = [self.at_s[self.touched[layer]] for layer in range(home, home + ahead + 1) if layer in self.touched]
        return times[0] - min(times) if home in self.touched else 0.0


def _chosen(problem: Problem, clock: _Clock, plan: Plan, value: int) -> Offload:
    """The decision for a value with the layers that it leaves open."""
    decision, made = plan.decisions[value], problem.graph.producer[value]
    assert isinstance(decision, Offload), "only these are asked about"
    assert made is not None, "arguments are not offloaded by a plan"
    copy_s = problem.graph.values[value].size_bytes / problem.rates.host_bandwidth_bytes_per_s
    home = max(0, bisect_right(clock.layers, made) - 1)
    behind = max(0, len(clock.layers) - 2 - home)
    most = max(1, len(clock.layers) // _MOST_LAYERS)
    prefetch = problem.offloading.prefetch if decision.prefetch is None else decision.prefetch
    leave = decision.leave
    if leave is None:
        leave = prefetch
    if leave is None:
        enough = (k for k in range(min(most, behind)) if clock.out_s(made, home + 1 + k) >= copy_s)
        leave = next(enough, most)
    if prefetch is None:
        asks = asking_layer(problem.graph, plan, value)
        prefetch = next((k for k in range(most) if clock.back_s(asks, k) >= copy_s), most)
    return replace(decision, prefetch=prefetch, leave=min(leave, behind))
