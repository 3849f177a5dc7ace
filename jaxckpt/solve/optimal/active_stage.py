"""The active stage at each step of a replay, in the forward pass and in the backward.

A stage's backward begins with the first op after the forward pass that reads a value from inside the stage. Reads of a
boundary decide nothing, since neighbouring stages read it too. Clones right before that op belong to the same stage.

Read after `jaxckpt.solve.stages`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxckpt.ir import Phase
from jaxckpt.schedule import Run, ScheduleStep
from jaxckpt.solve.problem import Problem
from jaxckpt.solve.stages import StageStarts, boundaries, stage_index

ActiveStage = tuple[str, int]
"""An interval of the schedule: "forward" or "backward", and the index of the active stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageActivity:
    """For each step of a replay its interval, and the stages in the order in which their backward begins."""

    of_steps: tuple[ActiveStage, ...]
    order: tuple[int, ...]

    def holding_stages(self, active: ActiveStage, count: int) -> tuple[int, ...]:
        """Those of `count` stages, except the active one, whose saved values are live in an interval."""
        part, stage = active
        if part == "forward":
            return tuple(range(stage))
        done = set(self.order[: self.order.index(stage) + 1]) if stage in self.order else {stage}
        return tuple(t for t in range(count) if t not in done)


def active_stages(problem: Problem, stages: StageStarts, steps: Sequence[ScheduleStep]) -> StageActivity:
    """The active stage of a cut at each of some steps."""
    graph = problem.graph
    forward = stage_index(graph, stages)
    inside = _inside_stages(problem, forward, boundaries(problem, stages))
    of_steps: list[ActiveStage] = []
    begun: dict[int, None] = {}
    now: ActiveStage = ("forward", 0)
    clones = 0
    for step in steps:
        if not isinstance(step, Run) or step.is_clone:
            clones += 1
            of_steps.append(now)
            continue
        op = graph.ops[step.op]
        if op.phase is Phase.FORWARD:
            now = ("forward", forward[op.id])
        else:
            for stage in (inside[value] for value in op.reads if value in inside):
                if stage not in begun:
                    begun[stage] = None
                    now = ("backward", stage)
                    of_steps[len(of_steps) - clones :] = [now] * clones
        clones = 0
        of_steps.append(now)
    return StageActivity(of_steps=tuple(of_steps), order=tuple(begun))


def _inside_stages(problem: Problem, forward: Mapping[int, int], boundary: frozenset[int]) -> dict[int, int]:
    """The stage of each forward value that is neither on a boundary nor argument-derived."""
    written = ((v, stage) for op, stage in forward.items() for v in problem.graph.ops[op].writes)
    shared = boundary | problem.fusion.argument_derived
    return {v: stage for v, stage in written if v not in shared}
