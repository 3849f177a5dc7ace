"""What is alive while each stage is at work, apart from what other stages keep, and how long it is at work.

The peak of a plan is the largest of its windows: a stage at work in the forward pass, or in the backward. What is
alive there splits into what other stages keep until their own backward, which depends on their options alone, and
the rest, which depends on the stage's own. So one replay of the whole step, in which all stages keep nothing, and
replays of each stage by itself tell the peak of every combination: at each step of a window, what is alive in the
one, and what an option adds to it or takes from it in the other.

Read after `options`.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxckpt.cost import Replay
from jaxckpt.schedule import Run, ScheduleStep
from jaxckpt.solve.optimal.active_stage import ActiveStage
from jaxckpt.solve.optimal.options import Option
from jaxckpt.solve.optimal.stage_problem import StagedProblem, StageProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of the schedule in which one stage is at work.

    Attributes:
      stage: The stage.
      waiting: The other stages that keep their values meanwhile.
      own_bytes: For each option of the stage the most that is alive, less what `waiting` keeps by option.
    """

    stage: int
    waiting: tuple[int, ...]
    own_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """What replays say of a cut.

    Attributes:
      windows: One for each stage at work forward, one for each at work backward.
      stage_s: For each stage and each of its options the seconds that it is at work.
    """

    windows: tuple[Window, ...]
    stage_s: tuple[tuple[float, ...], ...]

    def step_s(self, chosen: Sequence[int]) -> float:
        """The seconds of the step where each stage takes one of its options."""
        return sum(own[k] for own, k in zip(self.stage_s, chosen, strict=True))

    def peak_bytes(self, options: Sequence[Sequence[Option]], chosen: Sequence[int]) -> int:
        """The most that is alive where each stage takes one of its options."""
        kept = [own[k].saved_bytes for own, k in zip(options, chosen, strict=True)]
        return max(w.own_bytes[chosen[w.stage]] + sum(kept[t] for t in w.waiting) for w in self.windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What the options of a stage change, against keeping nothing.

    Attributes:
      place: For each run of an op of the stage by itself (0 for the first time, 1 for its copy) a column.
      live_bytes: By option and column, the bytes alive.
      seconds: By option, all of the stage's work.
    """

    place: dict[tuple[int, bool], int]
    live_bytes: NDArray[np.int64]
    seconds: tuple[float, ...]


ProfiledStages = dict[tuple[object, ...], Changes]
"""By `StageProblem.key`, number of options, and which values of each are elsewhere while the stage is active."""


def profile_stages(
    cut: StagedProblem, options: Sequence[Sequence[Option]], tried: ProfiledStages | None = None
) -> StageMemory:
    """Tries every option of a cut's stages.

    Args:
      cut: The cut, taken apart.
      options: Those of its stages.
      tried: Stages of the same step whose options were tried before; those tried now are added.
    """
    tried = {} if tried is None else tried
    live_bytes = np.array(cut.nothing.live_bytes, dtype=np.int64)
    seconds = [0.0] * len(cut.stages)
    at: defaultdict[ActiveStage, list[int]] = defaultdict(list)
    for i, active_stages in enumerate(cut.activity.of_steps):
        at[active_stages].append(i)
        seconds[active_stages[1]] += cut.nothing.seconds[i]
    changes = []
    for subproblems, own in zip(cut.subproblems, options, strict=True):
        elsewhere = ((subproblems.turning(option.away), subproblems.cut(option.saved, option.shards)) for option in own)
        key = subproblems.key, len(own), *elsewhere
        if key not in tried:
            tried[key] = _changes(subproblems, own)
        changes.append(tried[key])
    windows = []
    for active_stages, steps in at.items():
        stage = active_stages[1]
        change = changes[stage]
        columns = _columns(cut.subproblems[stage], change, [cut.nothing.steps[i] for i in steps])
        own_bytes = (live_bytes[steps] + change.live_bytes[:, columns]).max(axis=1)
        waiting = cut.activity.waiting(active_stages, len(cut.stages))
        windows.append(Window(stage=stage, waiting=waiting, own_bytes=tuple(map(int, own_bytes))))
    stage_s = (
        tuple(whole_s + more_s + option.gather_s for more_s, option in zip(change.seconds, own, strict=True))
        for whole_s, change, own in zip(seconds, changes, options, strict=True)
    )
    return StageMemory(windows=tuple(windows), stage_s=tuple(stage_s))


def _changes(stage: StageProblem, options: Sequence[Option]) -> Changes:
    nothing = stage.replay(())
    place: dict[tuple[int, bool], int] = {}
    for step in nothing.steps:
        if isinstance(step, Run):
            place.setdefault((step.op, step.is_clone), len(place))
    # What is away is there while the stage is at work, but for what loops' turns make.
    replays = [stage.replay(option.saved, option.untouched, option.away, option.shards) for option in options]
    rows = np.stack([_live_bytes(replayed, place) for replayed in replays])
    return Changes(
        place=place,
        live_bytes=rows - _live_bytes(nothing, place),
        seconds=tuple(replayed.step_s - nothing.step_s for replayed in replays),
    )


def _live_bytes(replayed: Replay, place: dict[tuple[int, bool], int]) -> NDArray[np.int64]:
    """By column the bytes alive; where a copy is not made, those of the step before."""
    seen: dict[int, int] = {}
    for step, live_bytes in zip(replayed.steps, replayed.live_bytes, strict=True):
        if isinstance(step, Run):
            seen.setdefault(place[step.op, step.is_clone], live_bytes)
    row = np.zeros(len(place), dtype=np.int64)
    last = 0
    for column in range(len(place)):
        row[column] = last = seen.get(column, last)
    return row


def _columns(stage: StageProblem, change: Changes, steps: Sequence[ScheduleStep]) -> list[int]:
    """For each step of a window of the whole step the column that tells of it: its own, or that of the step before."""
    columns, last = [], 0
    for step in steps:
        if isinstance(step, Run):
            last = change.place.get((stage.induced_subgraph.op_position.get(step.op, -1), step.is_clone), last)
        columns.append(last)
    return columns
