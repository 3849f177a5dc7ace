"""Updates of parameters run as soon as what they need is there, so that gradients need not wait for each other.

That is where compilers put them, wherever they stand in the step. Read after `jaxckpt.ir.schedule`; `replay` asks.
"""

from collections import defaultdict
from collections.abc import Iterator

from jaxckpt.ir import Graph, Phase, Run, Schedule, Step
from jaxckpt.ir.loop import TURNS


def updates_early(graph: Graph, schedule: Schedule) -> Iterator[Step]:
    """The steps of a schedule with each update moved up to where its last operand is made."""
    updates = {op.id for op in graph.ops if op.phase is Phase.UPDATE and TURNS not in op.effects}
    if not updates:
        yield from schedule.steps
        return
    made: dict[int, int] = {}
    moved: defaultdict[int, list[Step]] = defaultdict(list)
    stay: list[Step | None] = []
    begins: dict[int | None, int] = {}
    for at, step in enumerate(schedule.steps):
        begins.setdefault(step.loop, at)
        if isinstance(step, Run) and step.op in updates and not step.again:
            ready = max((made.get(i, 0) for i in step.reads), default=at)
            ready = ready if step.loop is None else max(ready, begins[step.loop])
            moved[ready].append(step)
            stay.append(None)
        else:
            ready = at
            stay.append(step)
        for instance in step.writes:
            made[instance] = ready
    for at, kept in enumerate(stay):
        if kept is not None:
            yield kept
        yield from moved.get(at, ())
