"""A third state for what a stage keeps: on the host. Options of stages with it, and what the link makes of them.

An option that keeps values gets companions that keep the same values, some of them on the host: the largest one, half
of them, all of them, with or without what crosses into the next stage. Such a value holds no device memory while other
stages are at work, and costs time on the link to the host, each way.

The link carries one copy at a time each way. The copies of a stage begin when it has run, in the forward pass, and
must be back when its backward begins. So with copy seconds c_s of each stage, forward seconds f_s and backward seconds
b_s (stages 0 to n-1, the backward runs from n-1 down), no order of copies delays the step by less than

    out:   max over t of  sum_{s >= t} c_s  -  sum_{s > t} f_s
    back:  max over t of  sum_{s >= t} c_s  -  sum_{s > t} b_s

or by less than nothing, and copies in the order of the stages delay it by no more: the busy period of a queue. Both are
linear in the options, so the composition minimises them together with recomputation.

What the turns of a loop make is copied while the loop itself turns: that is no matter of other stages, and what it
delays is seen where the stage is tried by itself (`windows`).

Read after `options` and `shards`; `compose` takes it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import le

from jaxckpt.ir import Phase
from jaxckpt.schedule import Run
from jaxckpt.schedule.validate import reason_not_offloadable, values_in_loops
from jaxckpt.solve.optimal.options import Option
from jaxckpt.solve.optimal.shard_options import shard_variants
from jaxckpt.solve.optimal.stage_problem import StagedProblem
from jaxckpt.solve.problem import Problem
from jaxckpt.solve.stages import StageStarts

_STEPS = 2
"""The values of an option go to the host in so many steps: half of them, all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLink:
    """The link to the host beside the stages of a cut.

    Attributes:
      copy_s: For each stage and each of its options the seconds of its copies, one way.
      host_bytes: For each stage and option the bytes on the host.
      forward_s: Seconds of each stage's forward pass.
      backward_s: Seconds of each stage's backward, with what it computes again where it keeps nothing.
      most_host_bytes: What the host has; None for no limit.
    """

    copy_s: tuple[tuple[float, ...], ...]
    host_bytes: tuple[tuple[int, ...], ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    most_host_bytes: int | None = None

    def room_s(self, *, out: bool) -> tuple[float, ...]:
        """For each stage the work that hides the copies of it and of all later ones, one way."""
        work_s = self.forward_s if out else self.backward_s
        behind_s = list(accumulate(reversed(work_s), initial=0.0))[:-1]
        return tuple(reversed(behind_s))

    def stall_s(self, chosen: Sequence[int]) -> float:
        """Seconds by which the copies of some options delay the step, both ways together."""
        copies_s = [own[k] for own, k in zip(self.copy_s, chosen, strict=True)]
        queued_s = tuple(reversed(list(accumulate(reversed(copies_s)))))
        return sum(
            max(0.0, *(queue_s - room_s for queue_s, room_s in zip(queued_s, self.room_s(out=out), strict=True)))
            for out in (True, False)
        )


def with_moved_variants(
    cut: StagedProblem, options: Sequence[Sequence[Option]], layers: StageStarts
) -> tuple[tuple[Option, ...], ...]:
    """The options of every stage, with those that keep some of the same values on the host, or as shards, behind them.

    Args:
      cut: Where the forward pass is cut.
      options: Of its stages.
      layers: The ids of the ops at which layers begin.
    """
    problem, found = cut.problem, []
    kept = problem.offloading.last_layers_kept
    before = None if not kept else layers[max(0, len(layers) - kept)]
    for subproblems, own in zip(cut.subproblems, options, strict=True):
        made = {v for op in subproblems.ops for v in problem.graph.ops[op].writes}
        edge, others = subproblems.saved & made, list[Option]()
        if problem.may_offload:
            others += [other for option in own for other in offload_variants(problem, option, edge, before)]
        if problem.may_partition:
            others += [other for option in own for other in shard_variants(problem, option, edge)]
        found.append((*own, *_not_worse([*own, *others], others)))
    return tuple(found)


def _not_worse(options: Sequence[Option], among: Sequence[Option]) -> Iterator[Option]:
    """Those than which no other option is better: in bytes on the device, in seconds and in bytes on the link."""

    def rank(option: Option) -> tuple[float, float, float]:
        return option.saved_bytes, option.recompute_s, option.away_bytes

    ranks = sorted({rank(option) for option in options if not option.untouched})
    best = {r for r in ranks if not any(other != r and all(map(le, other, r)) for other in ranks)}
    seen: set[tuple[float, float, float]] = set()
    for option in among:
        if rank(option) in best and rank(option) not in seen:
            seen.add(rank(option))
            yield option


def offload_variants(
    problem: Problem, option: Option, boundary: frozenset[int] = frozenset(), before: int | None = None
) -> Iterator[Option]:
    """The options that keep the same, some of it on the host.

    Args:
      problem: The step.
      option: What a stage keeps.
      boundary: What it keeps whatever its option, for the stages behind it.
      before: The op from which on all values stay on the device, if there is one.

    Returns:
      Options that hold less on the device, perhaps less than nothing: boundaries are counted elsewhere.
    """
    if option.untouched:
        return
    graph, may_leave = problem.graph, _leaving(problem, before)
    inner = sorted(filter(may_leave, option.saved), key=lambda v: (-graph.values[v].size_bytes, v))
    counts = sorted({len(inner) * step // _STEPS for step in range(_STEPS + 1)} | ({1} if inner else set()))
    for edge in dict.fromkeys((frozenset[int](), frozenset(filter(may_leave, boundary)))):
        for away in (edge.union(inner[:count]) for count in counts):
            if away:
                away_bytes = sum(map(graph.residual_bytes, away))
                yield replace(option, away=away, away_bytes=away_bytes, saved_bytes=option.saved_bytes - away_bytes)


def host_link(cut: StagedProblem, options: Sequence[Sequence[Option]]) -> HostLink:
    """The link beside the stages of a cut."""
    problem = cut.problem
    forward_s, backward_s = [0.0] * len(cut.stages), [0.0] * len(cut.stages)
    for step, seconds, (_, stage) in zip(cut.nothing.steps, cut.nothing.seconds, cut.activity.of_steps, strict=True):
        is_forward = isinstance(step, Run) and not step.is_clone and problem.graph.ops[step.op].phase is Phase.FORWARD
        (forward_s if is_forward else backward_s)[stage] += seconds
    return HostLink(
        copy_s=tuple(tuple(_copy_s(problem, option) for option in own) for own in options),
        host_bytes=tuple(tuple(option.away_bytes for option in own) for own in options),
        forward_s=tuple(forward_s),
        backward_s=tuple(backward_s),
        most_host_bytes=problem.offloading.most_host_bytes,
    )


def _copy_s(problem: Problem, option: Option) -> float:
    """Seconds of an option's copies outside of loops, one way."""
    outside = option.away - values_in_loops(problem.graph)
    return sum(map(problem.graph.residual_bytes, outside)) / problem.rates.host_bandwidth_bytes_per_s


def _leaving(problem: Problem, before: int | None) -> Callable[[int], bool]:
    """Whether a value can wait on the host: a large one of which no policy says otherwise, of loops where XLA can."""
    graph = problem.graph

    def may_leave(value: int) -> bool:
        made = graph.producer[value]
        if made is None or (before is not None and made >= before) or reason_not_offloadable(graph, value) is not None:
            return False
        if graph.ops[made].loop is not None and not problem.may_offload_loop_values:
            return False
        return value not in problem.required and graph.values[value].size_bytes >= problem.offloading.min_bytes

    return may_leave
