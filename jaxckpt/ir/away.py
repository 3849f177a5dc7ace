"""When values that wait elsewhere must have left, and when they start on their way back.

A value of stage s that is offloaded with prefetch k has left when stage s + k has run, and starts to come back when the
backward first reads anything decided of stage s + k (or of a stage between): so each copy has k stages of work to
hide behind, both ways. A value of the last k stages is not waited for: the backward comes too soon.

Read after `plan`; `schedule` carries it out. Complexity: linear in decisions and their readers.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from jaxckpt.ir.decision import Offload, Partition
from jaxckpt.ir.graph import Graph, Phase
from jaxckpt.ir.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Away:
    """The times of values that wait elsewhere.

    Attributes:
      values: Those values.
      leave_before: For an op that begins a stage the values whose copies must be done before it.
      fetch_before: For an op of the backward the values that start to come back before it, the last made first.
    """

    values: frozenset[int]
    leave_before: Mapping[int, tuple[int, ...]]
    fetch_before: Mapping[int, tuple[int, ...]]


def away(graph: Graph, plan: Plan) -> Away:
    """Finds the times for the values that a plan offloads or partitions."""
    moved = {v: d for v, d in plan.decisions.items() if isinstance(d, Offload | Partition)}
    if not moved:
        return Away(values=frozenset(), leave_before={}, fetch_before={})
    leave: defaultdict[int, list[int]] = defaultdict(list)
    fetch: defaultdict[int, list[int]] = defaultdict(list)
    home = {v: _stage(plan, graph, v) for v in plan.decisions}
    touched = _first_touches(graph, home)
    for value, decision in moved.items():
        ahead = decision.prefetch if isinstance(decision, Offload) else 0
        left = home[value] + 1 + ahead
        if isinstance(decision, Offload) and left < len(plan.stages):
            leave[plan.stages[left]].append(value)
        times = [touched[stage] for stage in range(home[value], home[value] + ahead + 1) if stage in touched]
        if times:
            fetch[min(times)].append(value)
    return Away(
        values=frozenset(moved),
        leave_before={op: tuple(values) for op, values in leave.items()},
        fetch_before={op: tuple(sorted(values, reverse=True)) for op, values in fetch.items()},
    )


def _stage(plan: Plan, graph: Graph, value: int) -> int:
    made = graph.producer[value]
    return max(0, bisect_right(plan.stages, -1 if made is None else made) - 1)


def _first_touches(graph: Graph, home: Mapping[int, int]) -> dict[int, int]:
    """For each stage the first op after the forward pass that reads one of its decided values."""
    touched: dict[int, int] = {}
    for value, stage in home.items():
        late = next((r for r in graph.readers[value] if graph.ops[r].phase is not Phase.FORWARD), None)
        if late is not None:
            touched[stage] = min(late, touched.get(stage, late))
    return touched
