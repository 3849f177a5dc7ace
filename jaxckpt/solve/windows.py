"""What is alive while each stage is at work, apart from what other stages keep, and how long it is at work.

The peak of a plan is the largest of its windows: a stage at work in the forward pass, or in the backward. What is
alive there splits into what other stages keep until their own backward, which depends on their options alone, and
the rest, which depends on the stage's own. So a few replays tell the peak of every combination, and the seconds of
each option as they are beside its neighbours: one in which all stages keep nothing, and some in which stages of the
same options each take another one.

Read after `options`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxckpt.cost import Replay
from jaxckpt.ir import Phase, Plan, Run
from jaxckpt.solve.options import Option
from jaxckpt.solve.problem import Problem, decisions_saving
from jaxckpt.solve.stages import Stages, boundaries, stage_index


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
class Seen:
    """What replays say of a cut.

    Attributes:
      windows: One for each stage at work forward, one for each at work backward.
      stage_s: For each stage and each of its options the seconds that it is at work.
    """

    windows: tuple[Window, ...]
    stage_s: tuple[tuple[float, ...], ...]


def look(problem: Problem, stages: Stages, options: Sequence[Sequence[Option]]) -> Seen:
    """Replays a cut often enough to see every option of its stages."""
    replays = _Replays(problem, stages, options)
    nothing = replays.look([0] * len(stages))
    changes: dict[tuple[_Alike, int], tuple[dict[str, int], float]] = {}
    for chosen in rotations(options):
        seen = replays.look(chosen)
        for stage, k in enumerate(chosen):
            keys = [key for key, at in seen.own_bytes if at == stage and (key, at) in nothing.own_bytes]
            more = {key: seen.own_bytes[key, stage] - nothing.own_bytes[key, stage] for key in keys}
            changes.setdefault((_alike(options[stage]), k), (more, seen.stage_s[stage] - nothing.stage_s[stage]))
    windows, none = [], (dict[str, int](), 0.0)
    for (key, stage), own_bytes in nothing.own_bytes.items():
        alike = _alike(options[stage])
        of_option = (own_bytes + changes.get((alike, k), none)[0].get(key, 0) for k in range(len(options[stage])))
        waiting = _waiting(key, stage, len(stages), nothing.order)
        windows.append(Window(stage=stage, waiting=waiting, own_bytes=tuple(of_option)))
    stage_s = (
        tuple(nothing.stage_s[stage] + changes.get((_alike(own), k), none)[1] for k in range(len(own)))
        for stage, own in enumerate(options)
    )
    return Seen(windows=tuple(windows), stage_s=tuple(stage_s))


_Alike = tuple[tuple[int, float], ...]
"""Equal for stages whose options are the same, place by place."""


def _alike(options: Sequence[Option]) -> _Alike:
    return tuple((option.saved_bytes, option.recompute_s) for option in options)


def rotations(options: Sequence[Sequence[Option]]) -> Iterator[list[int]]:
    """For each replay the option that each stage takes, so that every option is seen in some stage that has it."""
    members: dict[_Alike, list[int]] = {}
    for stage, own in enumerate(options):
        members.setdefault(_alike(own), []).append(stage)
    count = max(-(-(len(alike) - 1) // len(stages)) for alike, stages in members.items())
    for turn in range(count):
        chosen = [0] * len(options)
        for alike, stages in members.items():
            for place, stage in enumerate(stages):
                if len(alike) > 1:
                    chosen[stage] = 1 + (turn * len(stages) + place) % (len(alike) - 1)
        yield chosen


@dataclass(frozen=True, slots=True)
class _Look:
    """One replay: bytes of each window less what waits, seconds of each stage, the order in which they go backward."""

    own_bytes: dict[tuple[str, int], int]
    stage_s: list[float]
    order: list[int]


class _Replays:
    """Replays of one cut."""

    def __init__(self, problem: Problem, stages: Stages, options: Sequence[Sequence[Option]]):
        self._problem, self._stages, self._options = problem, stages, options
        self._fixed = boundaries(problem, stages)
        self._home = stage_index(problem.graph, stages)

    def look(self, chosen: Sequence[int]) -> _Look:
        problem, stages = self._problem, self._stages
        taken = [stage[k] for stage, k in zip(self._options, chosen, strict=True)]
        saved = self._fixed.union(*(option.saved for option in taken))
        untouched = frozenset[int]().union(*(option.untouched for option in taken))
        decisions = decisions_saving(problem, saved, untouched)
        replayed = problem.replay(Plan(fingerprint="", decisions=decisions, stages=stages))
        labels, order = _labels(problem, self._home, replayed, self._fixed)
        held = {label: sum(taken[t].saved_bytes for t in _waiting(*label, len(taken), order)) for label in set(labels)}
        own: dict[tuple[str, int], int] = {}
        stage_s = [0.0] * len(stages)
        for label, live_bytes, seconds in zip(labels, replayed.live_bytes, replayed.seconds, strict=True):
            own[label] = max(own.get(label, live_bytes - held[label]), live_bytes - held[label])
            stage_s[label[1]] += seconds
        return _Look(own, stage_s, order)


def _labels(
    problem: Problem, home: Mapping[int, int], replayed: Replay, fixed: frozenset[int]
) -> tuple[list[tuple[str, int]], list[int]]:
    """For each step the window that it falls in, and the order in which stages go backward.

    A stage's backward begins with the first late op that reads something it made inside; its boundary is read
    by its neighbours too and says nothing.
    """
    graph = problem.graph
    quiet = fixed | problem.fusion.light
    labels: list[tuple[str, int]] = []
    begun: list[int] = []
    now = ("forward", 0)
    for step in replayed.steps:
        if isinstance(step, Run) and not step.again:
            op = graph.ops[step.op]
            if op.phase is Phase.FORWARD:
                now = ("forward", home[op.id])
            else:
                for value in op.reads:
                    made = graph.producer[value]
                    stage = None if made is None or value in quiet else home.get(made)
                    if stage is not None and stage not in begun:
                        begun.append(stage)
                        now = ("backward", stage)
        labels.append(now)
    return labels, begun


def _waiting(key: str, stage: int, count: int, order: Sequence[int]) -> tuple[int, ...]:
    """Stages whose kept values wait while `stage` works."""
    if key == "forward":
        return tuple(t for t in range(stage))
    done = set(order[: order.index(stage) + 1]) if stage in order else {stage}
    return tuple(t for t in range(count) if t not in done)
