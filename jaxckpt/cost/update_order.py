"""Optimiser updates run as soon as their operands are available, so that gradients need not be alive together.

Compilers schedule updates so, wherever they are in the step. Read after `jaxckpt.schedule`; `replay` asks.
"""

from collections import defaultdict
from collections.abc import Iterator

from jaxckpt.ir import Graph
from jaxckpt.schedule import Run, Schedule, ScheduleStep


def updates_early(graph: Graph, schedule: Schedule) -> Iterator[ScheduleStep]:
    """The steps of a schedule with each update moved up to where its last operand is written."""
    if not graph.updates:
        yield from schedule.steps
        return
    moved = _moved_updates(graph, schedule)
    after: defaultdict[int, list[ScheduleStep]] = defaultdict(list)
    for at, position in moved.items():
        after[position].append(schedule.steps[at])
    for at, step in enumerate(schedule.steps):
        if at not in moved:
            yield step
        if at in after:
            yield from after[at]


def _moved_updates(graph: Graph, schedule: Schedule) -> dict[int, int]:
    """For each step that is an update the step after which it can run; not before the loop that it is in."""
    updates, moved = graph.updates, dict[int, int]()
    available = [0] * len(schedule.origin)
    begins: dict[int | None, int] = {}
    for at, step in enumerate(schedule.steps):
        begins.setdefault(step.loop, at)
        position = at
        if isinstance(step, Run) and step.op in updates and not step.is_clone:
            position = max([available[i] for i in step.reads], default=at)
            position = position if step.loop is None else max(position, begins[step.loop])
            moved[at] = position
        for instance in step.writes:
            available[instance] = position
    return moved
