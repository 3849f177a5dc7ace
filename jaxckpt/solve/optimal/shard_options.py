"""A fourth state for what a stage keeps: as shards over a mesh axis. Options of stages with it.

An option that keeps values gets companions that keep the same values, some of them as shards: the largest one, half of
them, all of them, with or without what crosses into the next stage. A value that every one of n devices holds whole
then waits in an nth of its bytes, and costs a slice in the forward pass and a gather in the backward. Unlike copies to
the host nothing runs beside the work, so nothing queues, and what the stages' options cost adds up.

What a stage keeps for itself is sharded in its subproblem (`stage_problem`), so bytes and seconds come from a replay.
What crosses into the next stage is gathered there: its slice and its gather are added to the seconds of the stage that
produces the value.

Which values: large floating point ones that are whole over an axis that divides them, of which no policy says
otherwise. Axis and dimension are those that a policy's open partition gets (`jaxckpt.schedule.partition`).

Read after `options`; `hosted` puts these options beside its own.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from jaxckpt.ir import Partition
from jaxckpt.schedule import partition_with_axes
from jaxckpt.schedule.validate import values_in_loops
from jaxckpt.solve.optimal.options import Option
from jaxckpt.solve.problem import Problem

_MIN_BYTES = 2**20
"""Smaller values stay whole: every gather takes its time to start."""
_STEPS = 2
"""The values of an option are cut in so many steps: half of them, all of them."""


def shard_variants(problem: Problem, option: Option, boundary: frozenset[int] = frozenset()) -> Iterator[Option]:
    """The options that keep the same, some of it as shards.

    Args:
      problem: The step.
      option: What a stage keeps, all of it whole.
      boundary: What it keeps whatever its option, for the stages behind it.

    Returns:
      Options that hold less, perhaps less than nothing: boundaries are counted elsewhere.
    """
    if option.untouched:
        return
    graph = problem.graph
    cuts = {v: cut for v in option.saved.union(boundary) if (cut := partition_of(problem, v)) is not None}
    inner = sorted(option.saved.intersection(cuts), key=lambda v: (-graph.values[v].size_bytes, v))
    counts = sorted({len(inner) * step // _STEPS for step in range(_STEPS + 1)} | ({1} if inner else set()))
    # What a loop's turns make is cut where the stage is tried, also where it crosses into the next one.
    crossing = boundary.intersection(cuts)
    elsewhere = crossing - values_in_loops(graph)
    for edge in dict.fromkeys((frozenset[int](), crossing)):
        for shards in (edge.union(inner[:count]) for count in counts):
            if shards:
                yield replace(
                    option,
                    shards=shards,
                    saved_bytes=option.saved_bytes - sum(_spared_bytes(problem, v, cuts[v]) for v in shards),
                    recompute_s=option.recompute_s + _moved_s(problem, {v: cuts[v] for v in shards}.items()),
                    gather_s=_moved_s(problem, {v: cuts[v] for v in shards & elsewhere}.items()),
                )


def partition_of(problem: Problem, value: int) -> Partition | None:
    """How a value waits as shards where the planner chooses; None where it stays whole."""
    graph = problem.graph
    if not graph.mesh or value in problem.required or graph.producer[value] is None or value in graph.results:
        return None
    if graph.values[value].size_bytes < _MIN_BYTES:
        return None
    found = partition_with_axes(graph, value, Partition())
    return found if isinstance(found, Partition) else None


def _spared_bytes(problem: Problem, value: int, cut: Partition) -> int:
    """What a value takes less as shards, of all turns."""
    residual_bytes = problem.graph.residual_bytes(value)
    return residual_bytes - residual_bytes // problem.graph.axis_size(cut.axis or "")


def _moved_s(problem: Problem, cuts: Iterable[tuple[int, Partition]]) -> float:
    """Seconds of the slices and gathers of some values, as the replay counts them."""
    graph, rates, total_s = problem.graph, problem.rates, 0.0
    for value, cut in cuts:
        whole_bytes = graph.values[value].size_bytes
        part_bytes = whole_bytes // graph.axis_size(cut.axis or "")
        kernel_s = rates.launch_s + (whole_bytes + part_bytes) / rates.memory_bandwidth_bytes_per_s
        turns = max(1, graph.residual_bytes(value) // max(1, whole_bytes))
        total_s += turns * (2 * kernel_s + rates.exchange_s(whole_bytes - part_bytes))
    return total_s
