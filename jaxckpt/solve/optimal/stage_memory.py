"""Memory profiles of stages: live bytes while each stage is active, and its seconds, for every option.

In each interval of the schedule one stage is active. Live bytes there are the sum of the values that other stages save
until their own backward, which depend on the options of those stages, and the rest, which depends on the option of the
active stage. So one replay of the full step, in which all stages save their boundary only, and replays of each
subproblem give the peak of every combination of options: at each step of an interval the live bytes of the replay of
the full step, plus the difference that the option makes in the replay of its subproblem. Read after `options`.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxckpt.cost import Replay
from jaxckpt.schedule import Run, ScheduleStep
from jaxckpt.solve.optimal.options import Option
from jaxckpt.solve.optimal.stage_problem import ActiveStage, StagedProblem, StageProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveInterval:
    """An interval of the schedule in which one stage is active.

    `holding` are the other stages whose saved values are live, `own_bytes` for each option of the stage the peak of
    live bytes without these.
    """

    stage: int
    holding: tuple[int, ...]
    own_bytes: tuple[int, ...]

    @property
    def copying(self) -> int | None:
        """The stage before this one, if it is held: copies of its offloaded values end, or begin, in this interval."""
        return self.stage - 1 if self.stage - 1 in self.holding else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Memory profile of one cut, and for each stage and each of its options the seconds that the stage is active."""

    intervals: tuple[ActiveInterval, ...]
    stage_s: tuple[tuple[float, ...], ...]

    def peak_bytes(self, options: Sequence[Sequence[Option]], chosen: Sequence[int]) -> int:
        """Peak of live bytes for one option of each stage."""
        taken = [own[k] for own, k in zip(options, chosen, strict=True)]
        return max(
            interval.own_bytes[chosen[interval.stage]]
            + sum(taken[t].saved_bytes for t in interval.holding)
            + (0 if interval.copying is None else taken[interval.copying].in_flight_bytes)
            for interval in self.intervals
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionDeltas:
    """Differences that the options of a stage make to saving its boundary only.

    `column` gives for each op of the subproblem, and for its clone (True), the column of `live_bytes`, whose rows, like
    `seconds`, are by option.
    """

    column: dict[tuple[int, bool], int]
    live_bytes: NDArray[np.int64]
    seconds: tuple[float, ...]


ProfiledStages = dict[tuple[object, ...], OptionDeltas]
"""By `StageProblem.key`, and the values that each option saves, offloads or shards in the subproblem."""


def profile_stages(staged: StagedProblem, options: Sequence[Sequence[Option]], known: ProfiledStages) -> StageMemory:
    """Replays every option of every stage; profiles of stages are added to `known`."""
    baseline, activity = staged.baseline, staged.activity
    live_bytes = np.array(baseline.live_bytes, dtype=np.int64)
    stage_s = [0.0] * len(staged.stages)
    steps_of: defaultdict[ActiveStage, list[int]] = defaultdict(list)
    for i, active in enumerate(activity.of_steps):
        steps_of[active].append(i)
        stage_s[active[1]] += baseline.seconds[i]
    deltas = []
    for stage, own in zip(staged.subproblems, options, strict=True):
        moved = ((stage.offloaded_in_loops(o.offloaded), stage.sharded_here(o.saved, o.sharded)) for o in own)
        position = stage.induced_subgraph.position
        saved = (frozenset(map(position.__getitem__, o.saved)) for o in own)
        key = stage.key, *zip(saved, moved, strict=True)
        if key not in known:
            known[key] = _deltas(stage, own)
        deltas.append(known[key])
    intervals = []
    for active, steps in steps_of.items():
        k = active[1]
        columns = _columns(staged.subproblems[k], deltas[k], [baseline.steps[i] for i in steps])
        own_bytes = (live_bytes[steps] + deltas[k].live_bytes[:, columns]).max(axis=1)
        holding = activity.holding_stages(active, len(staged.stages))
        intervals.append(ActiveInterval(stage=k, holding=holding, own_bytes=tuple(map(int, own_bytes))))
    option_s = (
        tuple(base_s + delta_s + option.gather_s for delta_s, option in zip(delta.seconds, own, strict=True))
        for base_s, delta, own in zip(stage_s, deltas, options, strict=True)
    )
    return StageMemory(intervals=tuple(intervals), stage_s=tuple(option_s))


def _deltas(stage: StageProblem, options: Sequence[Option]) -> OptionDeltas:
    baseline = stage.replay(())
    column: dict[tuple[int, bool], int] = {}
    for step in baseline.steps:
        if isinstance(step, Run):
            column.setdefault((step.op, step.is_clone), len(column))
    # Offloaded values are on the device while their own stage is active, unless a loop body produces them.
    replays = [stage.replay(o.saved, o.untouched, o.offloaded, o.sharded) for o in options]
    rows = np.stack([_live_bytes(replayed, column) for replayed in replays])
    return OptionDeltas(
        column=column,
        live_bytes=rows - _live_bytes(baseline, column),
        seconds=tuple(replayed.step_s - baseline.step_s for replayed in replays),
    )


def _live_bytes(replayed: Replay, column: dict[tuple[int, bool], int]) -> NDArray[np.int64]:
    """Live bytes by column; for an op that does not run in this replay, those of the column before."""
    found: dict[int, int] = {}
    for step, live_bytes in zip(replayed.steps, replayed.live_bytes, strict=True):
        # A cast that runs again behind another barrier than in the baseline has no column, and writes nothing.
        if isinstance(step, Run) and (step.op, step.is_clone) in column:
            found.setdefault(column[step.op, step.is_clone], live_bytes)
    row = np.zeros(len(column), dtype=np.int64)
    for k in range(len(column)):
        row[k] = found.get(k, row[k - 1] if k else 0)
    return row


def _columns(stage: StageProblem, deltas: OptionDeltas, steps: Sequence[ScheduleStep]) -> list[int]:
    """For each step of the full step the column of the same op in the subproblem, or that of the step before."""
    columns, last = [], 0
    for step in steps:
        if isinstance(step, Run):
            last = deltas.column.get((stage.induced_subgraph.op_position.get(step.op, -1), step.is_clone), last)
        columns.append(last)
    return columns
