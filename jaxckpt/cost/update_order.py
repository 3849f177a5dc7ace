"""Updates of parameters run as soon as what they need is there, so that gradients need not wait for each other.

That is where compilers put them, wherever they stand in the step. Read after `jaxckpt.schedule`; `replay` asks.
"""

from collections import defaultdict
from collections.abc import Iterator

from jaxckpt.ir import Graph
from jaxckpt.schedule import Run, Schedule, ScheduleStep


def updates_early(graph: Graph, schedule: Schedule) -> Iterator[ScheduleStep]:
    """The steps of a schedule with each update moved up to where its last operand is made."""
    updates = graph.updates
    if not updates:
        yield from schedule.steps
        return
    made = [0] * len(schedule.origin)
    moved: defaultdict[int, list[ScheduleStep]] = defaultdict(list)
    stay: list[ScheduleStep | None] = []
    begins: dict[int | None, int] = {}
    for at, step in enumerate(schedule.steps):
        begins.setdefault(step.loop, at)
        ready = at
        kept: ScheduleStep | None = step
        if isinstance(step, Run) and step.op in updates and not step.is_clone:
            ready = max([made[i] for i in step.reads], default=at)
            ready = ready if step.loop is None else max(ready, begins[step.loop])
            moved[ready].append(step)
            kept = None
        stay.append(kept)
        for instance in step.writes:
            made[instance] = ready
    for at, stays in enumerate(stay):
        if stays is not None:
            yield stays
        if at in moved:
            yield from moved[at]
