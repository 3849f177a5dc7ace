"""Variants of each stage's options that offload or shard saved values, and the constraint of the host link.

An offloaded value takes device memory while its own stage and the next stage are active, and costs time on the link to
the host. The forward pass of the next stage hides the end of the store, and the backward of that stage the start of the
load. The link carries one copy at a time each way. Stores of a stage begin when the stage has run in the forward pass;
loads must end when its backward begins. So with copy seconds c_s of each stage, forward seconds f_s and backward
seconds b_s (stages 0 to n-1, the backward runs from n-1 down), no order of copies delays the step by less than

    store:  max over t of  sum_{s >= t} c_s  -  sum_{s > t} f_s
    load:   max over t of  sum_{s >= t} c_s  -  sum_{s > t} b_s

or zero, if that is more; copies in the order of the stages reach this bound: it is the busy period of a queue. Both are
linear in the options, so the composition minimises them together with recomputation. Values of loop bodies are copied
while the loop itself runs: no other stage delays these copies, and their own delay is part of the stage's memory
profile (`stage_memory`).

A sharded value takes an nth of its bytes on each of the n devices of a mesh axis on which it is replicated, and costs a
slice in the forward pass and an all-gather in the backward. Nothing runs concurrently with these, so the seconds of the
stages' options add up. The stage's own saved values are sharded in its subproblem (`stage_problem`), so their bytes and
seconds come from a replay. Boundary values are gathered in the next stage: the seconds of their slice and gather are
added to the stage that produces them. Axis and dimension are the ones that an open partition of a policy gets
(`jaxckpt.schedule.partition`).

Read after `options`; `compose` uses the variants and the link.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from operator import le

from jaxckpt.cost import exchange_s
from jaxckpt.ir import Exchange, Partition, Phase
from jaxckpt.schedule import Run, partition_with_axes
from jaxckpt.schedule.validate import reason_not_offloadable, values_in_loops
from jaxckpt.solve.optimal.options import Option
from jaxckpt.solve.optimal.stage_problem import StagedProblem
from jaxckpt.solve.problem import Problem
from jaxckpt.solve.stages import StageStarts

_STEPS = 2
"""An option's values are moved in so many steps: half of them, all of them. Each step adds columns to the integer
programme of `compose`. 1 and 4 give plans that are as fast (`python -m benchmarks.constants`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLink:
    """Time and memory that offloading has in a cut.

    Attributes:
      copy_s: For each stage and each of its options the seconds of its copies, one way.
      host_bytes: For each stage and each of its options the bytes on the host.
      forward_s: Seconds of each stage's forward pass.
      backward_s: Seconds of each stage's backward, if it recomputes everything inside.
    """

    copy_s: tuple[tuple[float, ...], ...]
    host_bytes: tuple[tuple[int, ...], ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    most_host_bytes: int | None = None

    def hiding_s(self, *, store: bool) -> tuple[float, ...]:
        """For each stage the seconds of all later stages: they hide the copies of this stage and of later ones."""
        later_s = accumulate(reversed(self.forward_s if store else self.backward_s), initial=0.0)
        return tuple(reversed(list(later_s)[:-1]))

    def stall_s(self, chosen: Sequence[int]) -> float:
        """Seconds by which the copies of one option of each stage delay the step, both ways together."""
        copies_s = [own[k] for own, k in zip(self.copy_s, chosen, strict=True)]
        queued_s = list(accumulate(reversed(copies_s)))[::-1]
        return sum(
            max(0.0, *(queue_s - free_s for queue_s, free_s in zip(queued_s, self.hiding_s(store=store), strict=True)))
            for store in (True, False)
        )


def with_moved_variants(
    staged: StagedProblem, options: Sequence[Sequence[Option]], layers: StageStarts
) -> tuple[tuple[Option, ...], ...]:
    """The options of every stage, followed by their variants that offload or shard some of the saved values.

    Variants that another option of the stage dominates are left out.
    """
    problem, last_layers = staged.problem, staged.problem.offloading.last_layers_kept
    before = None if not last_layers else layers[max(0, len(layers) - last_layers)]
    found = []
    for stage, own in zip(staged.subproblems, options, strict=True):
        boundary = stage.saved & {v for op in stage.ops for v in problem.graph.ops[op].writes}
        offloaded = (offload_variants(problem, option, boundary, before) for option in own if problem.may_offload)
        sharded = (shard_variants(problem, option, boundary) for option in own if problem.may_partition)
        variants = list(chain.from_iterable((*offloaded, *sharded)))
        found.append((*own, *_not_dominated([*own, *variants], variants)))
    return tuple(found)


def _not_dominated(options: Sequence[Option], among: Sequence[Option]) -> Iterator[Option]:
    """The Pareto optima in device bytes, seconds and bytes on the link."""

    def rank(option: Option) -> tuple[float, float, float]:
        return option.saved_bytes, option.recompute_s, option.offloaded_bytes

    ranks = sorted({rank(option) for option in options if not option.untouched})
    best = {r for r in ranks if not any(other != r and all(map(le, other, r)) for other in ranks)}
    seen: set[tuple[float, float, float]] = set()
    for option in among:
        if rank(option) in best and rank(option) not in seen:
            seen.add(rank(option))
            yield option


def moved_sets(
    problem: Problem, option: Option, boundary: frozenset[int], eligible: frozenset[int]
) -> Iterator[frozenset[int]]:
    """The sets of eligible values that variants of an option move: the largest one of its own, half of them, all.

    Each set comes without and with the eligible values of the boundary. An untouched stage has no variants.
    """
    if option.untouched:
        return
    inner = sorted(option.saved & eligible, key=lambda v: (-problem.graph.values[v].size_bytes, v))
    counts = {len(inner) * step // _STEPS for step in range(_STEPS + 1)} | {min(1, len(inner))}
    for edge in dict.fromkeys((frozenset[int](), boundary & eligible)):
        yield from filter(None, (edge.union(inner[:count]) for count in sorted(counts)))


def offload_variants(
    problem: Problem, option: Option, boundary: frozenset[int] = frozenset(), before: int | None = None
) -> Iterator[Option]:
    """Variants of an option that save the same values and offload some of those written before an op.

    They have fewer device bytes; the bytes may be negative, since an option does not count its boundary.
    """
    eligible = (v for v in option.saved | boundary if _may_offload(problem, v, before))
    in_loops, residual_bytes = values_in_loops(problem.graph), problem.graph.residual_bytes
    for offloaded in moved_sets(problem, option, boundary, frozenset(eligible)):
        offloaded_bytes = sum(map(residual_bytes, offloaded))
        yield replace(
            option,
            offloaded=offloaded,
            offloaded_bytes=offloaded_bytes,
            in_flight_bytes=sum(map(residual_bytes, offloaded - in_loops)),
            saved_bytes=option.saved_bytes - offloaded_bytes,
        )


def shard_variants(problem: Problem, option: Option, boundary: frozenset[int] = frozenset()) -> Iterator[Option]:
    """Variants of an option that save the same values, some of them as shards.

    They have fewer device bytes; the bytes may be negative, since an option does not count its boundary.
    """
    cuts = {v: cut for v in option.saved.union(boundary) if (cut := partition_of(problem, v)) is not None}
    # Values of loop bodies are sharded in the subproblem, also if they cross into the next stage.
    elsewhere = boundary - values_in_loops(problem.graph)
    for sharded in moved_sets(problem, option, boundary, frozenset(cuts)):
        yield replace(
            option,
            sharded=sharded,
            saved_bytes=option.saved_bytes - sum(_spared_bytes(problem, v, cuts[v]) for v in sharded),
            recompute_s=option.recompute_s + sum(_moved_s(problem, v, cuts[v]) for v in sharded),
            gather_s=sum(_moved_s(problem, v, cuts[v]) for v in sharded & elsewhere),
        )


def _may_offload(problem: Problem, value: int, before: int | None) -> bool:
    """True for large values without a required decision; in loops, for those that XLA can offload."""
    graph, producer = problem.graph, problem.graph.producer[value]
    if producer is None or (before is not None and producer >= before):
        return False
    if graph.ops[producer].loop is not None and not problem.may_offload_loop_values:
        return False
    is_large = graph.values[value].size_bytes >= problem.offloading.min_bytes
    return is_large and value not in problem.required and reason_not_offloadable(graph, value) is None


def partition_of(problem: Problem, value: int) -> Partition | None:
    """The partition of a value that the planner may choose; None if the value stays replicated."""
    graph = problem.graph
    if not graph.mesh or value in problem.required or graph.producer[value] is None or value in graph.results:
        return None
    if graph.values[value].size_bytes < problem.offloading.min_bytes:
        return None
    found = partition_with_axes(graph, value, Partition())
    return found if isinstance(found, Partition) else None


def _spared_bytes(problem: Problem, value: int, cut: Partition) -> int:
    """Bytes that sharding a value saves on each device, over all iterations."""
    residual_bytes = problem.graph.residual_bytes(value)
    return residual_bytes - residual_bytes // problem.graph.axis_size(cut.axis or "")


def _moved_s(problem: Problem, value: int, cut: Partition) -> float:
    """Seconds of the slices and all-gathers of a value, as in a replay."""
    graph, rates = problem.graph, problem.rates
    full_bytes = graph.values[value].size_bytes
    part_bytes = full_bytes // graph.axis_size(cut.axis or "")
    kernel_s = rates.launch_s + (full_bytes + part_bytes) / rates.memory_bandwidth_bytes_per_s
    gathered = Exchange(full_bytes - part_bytes, (cut.axis,) if cut.axis else ())
    return graph.runs_per_step(graph.loop_of[value]) * (2 * kernel_s + exchange_s(graph, gathered, rates))


def host_link(staged: StagedProblem, options: Sequence[Sequence[Option]]) -> HostLink:
    """The host link of a cut, for some options of its stages."""
    problem, baseline = staged.problem, staged.baseline
    forward_s, backward_s = [0.0] * len(staged.stages), [0.0] * len(staged.stages)
    for step, seconds, (_, stage) in zip(baseline.steps, baseline.seconds, staged.activity.of_steps, strict=True):
        is_forward = isinstance(step, Run) and not step.is_clone and problem.graph.ops[step.op].phase is Phase.FORWARD
        (forward_s if is_forward else backward_s)[stage] += seconds
    bandwidth = problem.rates.host_bandwidth_bytes_per_s
    return HostLink(
        copy_s=tuple(tuple(option.in_flight_bytes / bandwidth for option in own) for own in options),
        host_bytes=tuple(tuple(option.offloaded_bytes for option in own) for own in options),
        forward_s=tuple(forward_s),
        backward_s=tuple(backward_s),
        most_host_bytes=problem.offloading.most_host_bytes,
    )
