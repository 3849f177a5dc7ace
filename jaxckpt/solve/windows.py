"""What is alive while each stage is at work, apart from what other stages keep.

The peak of a plan is the largest of its windows: a stage at work in the forward pass, or in the backward. What is
alive there splits into what other stages keep until their own backward, which depends on their options alone, and
the rest, which depends on the stage's own. So a few replays, in each of which every stage takes another of its
options, tell the peak of every combination.

Read after `options`.
"""

from collections.abc import Sequence
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


def windows(problem: Problem, stages: Stages, options: Sequence[Sequence[Option]]) -> tuple[Window, ...]:
    """The windows of a cut: one for each stage at work forward, one for each at work backward."""
    fixed = boundaries(problem, stages)
    most = max(map(len, options))
    own: dict[tuple[str, int], dict[int, int]] = {}
    order: list[int] = []
    for k in range(most):
        taken = [stage[min(k, len(stage) - 1)] for stage in options]
        saved = fixed.union(*(option.saved for option in taken))
        replayed = problem.replay(Plan(fingerprint="", decisions=decisions_saving(problem, saved), stages=stages))
        labels, order = _labels(problem, stages, replayed, fixed)
        _collect(own, labels, order, replayed, taken, k)
    return tuple(
        Window(
            stage=stage,
            waiting=_waiting(key, stage, len(stages), order),
            own_bytes=tuple(_of_option(own[key, stage], k) for k in range(len(options[stage]))),
        )
        for key, stage in own
    )


def _of_option(measured: dict[int, int], k: int) -> int:
    """The bytes measured with option k, or with the nearest one for which this window was seen."""
    return measured[min(measured, key=lambda seen: abs(seen - k))]


def _labels(
    problem: Problem, stages: Stages, replayed: Replay, fixed: frozenset[int]
) -> tuple[list[tuple[str, int]], list[int]]:
    """For each step the window that it falls in, and the order in which stages go backward.

    A stage's backward begins with the first late op that reads something it made inside; its boundary is read
    by its neighbours too and says nothing.
    """
    graph = problem.graph
    home = stage_index(graph, stages)
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


def _collect(
    own: dict[tuple[str, int], dict[int, int]],
    labels: list[tuple[str, int]],
    order: list[int],
    replayed: Replay,
    taken: Sequence[Option],
    k: int,
) -> None:
    held = {label: sum(taken[t].saved_bytes for t in _waiting(*label, len(taken), order)) for label in set(labels)}
    for label, live_bytes in zip(labels, replayed.live_bytes, strict=True):
        measured = own.setdefault(label, {})
        measured[k] = max(measured.get(k, 0), live_bytes - held[label])


def _waiting(key: str, stage: int, count: int, order: Sequence[int]) -> tuple[int, ...]:
    """Stages whose kept values wait while `stage` works."""
    if key == "forward":
        return tuple(t for t in range(stage))
    done = set(order[: order.index(stage) + 1]) if stage in order else {stage}
    return tuple(t for t in range(count) if t not in done)
