"""Which stage is at work at each step of a replay, forward or backward.

A stage's backward begins with the first late op that reads something the stage made inside; its boundary is read by
its neighbours too and says nothing. What is computed again right before that op belongs to it.

Read after `stages`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxckpt.ir import Phase
from jaxckpt.schedule import Run, ScheduleStep
from jaxckpt.solve.problem import Problem
from jaxckpt.solve.stages import StageStarts, boundaries, stage_index

ActiveStage = tuple[str, int]
"""A window: "forward" or "backward", and a stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageActivity:
    """Who is at work when.

    Attributes:
      of_steps: For each step the window that it falls in.
      order: The stages in the order in which they begin to go backward.
    """

    of_steps: tuple[ActiveStage, ...]
    order: tuple[int, ...]

    def waiting(self, active_stages: ActiveStage, count: int) -> tuple[int, ...]:
        """Those of `count` stages whose kept values wait in a window."""
        part, stage = active_stages
        if part == "forward":
            return tuple(range(stage))
        done = set(self.order[: self.order.index(stage) + 1]) if stage in self.order else {stage}
        return tuple(t for t in range(count) if t not in done)


def active_stages(problem: Problem, stages: StageStarts, steps: Sequence[ScheduleStep]) -> StageActivity:
    """Labels the steps of a replay with the stages of a cut."""
    graph = problem.graph
    home = stage_index(graph, stages)
    quiet = boundaries(problem, stages) | problem.fusion.argument_derived
    activity: list[ActiveStage] = []
    begun: dict[int, None] = {}
    now: ActiveStage = ("forward", 0)
    copies = 0
    for step in steps:
        if not isinstance(step, Run) or step.is_clone:
            copies += 1
            activity.append(now)
            continue
        op = graph.ops[step.op]
        if op.phase is Phase.FORWARD:
            now = ("forward", home[op.id])
        else:
            for stage in _made_inside(problem, home, quiet, op.reads):
                if stage not in begun:
                    begun[stage] = None
                    now = ("backward", stage)
                    activity[len(activity) - copies :] = [now] * copies
        copies = 0
        activity.append(now)
    return StageActivity(of_steps=tuple(activity), order=tuple(begun))


def _made_inside(
    problem: Problem, home: Mapping[int, int], quiet: frozenset[int], reads: Sequence[int]
) -> Iterator[int]:
    """The stages that made what an op reads, where it says something."""
    for value in reads:
        made = problem.graph.producer[value]
        if made is not None and made in home and value not in quiet:
            yield home[made]
