"""Shard variants of each stage's options: saved values sharded over a mesh axis until the backward.

An option that saves values has variants that save the same values, some of them as shards: the largest one, half of
them, all of them, with or without the boundary to the next stage. A value that is replicated on n devices then takes an
nth of its bytes, and costs a slice in the forward pass and an all-gather in the backward. Nothing runs concurrently
with these, so the seconds of the stages' options add up.

The stage's own saved values are sharded in its subproblem (`stage_problem`), so their bytes and seconds come from a
replay. Boundary values are gathered in the next stage: the seconds of their slice and gather are added to the stage
that produces them.

Candidates are large floating point values that are replicated over an axis that divides them, without a required
decision. Axis and dimension are the ones that an open partition of a policy gets (`jaxckpt.schedule.partition`).

Read after `options`; `offload_options` joins both kinds of variants.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from jaxckpt.ir import Partition
from jaxckpt.schedule import partition_with_axes
from jaxckpt.schedule.validate import values_in_loops
from jaxckpt.solve.optimal.options import Option
from jaxckpt.solve.problem import Problem

_MIN_BYTES = 2**20
"""Smaller values stay replicated: the launch of their gather costs more than their bytes. The default of
`Offloading.min_bytes` is the same; no benchmark fixed the exact value."""
_STEPS = 2
"""An option's values are moved in so many steps: half of them, all of them. Each step adds columns to the integer
programme of `compose`; no benchmark fixed the exact number."""


def variant_counts(count: int) -> list[int]:
    """How many of an option's values its variants offload or shard, the largest values first.

    Example:
      >>> variant_counts(0), variant_counts(7)
      ([0], [0, 1, 3, 7])
    """
    return sorted({count * step // _STEPS for step in range(_STEPS + 1)} | ({1} if count else set()))


def shard_variants(problem: Problem, option: Option, boundary: frozenset[int] = frozenset()) -> Iterator[Option]:
    """Variants of an option that save the same values, some of them as shards.

    Args:
      problem: The step.
      option: An option of a stage that shards nothing.
      boundary: Values of the stage that it saves under every option.

    Returns:
      Options of fewer device bytes. The bytes may be negative, since an option does not count its boundary.
    """
    if option.untouched:
        return
    graph = problem.graph
    cuts = {v: cut for v in option.saved.union(boundary) if (cut := partition_of(problem, v)) is not None}
    inner = sorted(option.saved.intersection(cuts), key=lambda v: (-graph.values[v].size_bytes, v))
    counts = variant_counts(len(inner))
    # Values of loop bodies are sharded in the subproblem, also if they cross into the next stage.
    crossing = boundary.intersection(cuts)
    elsewhere = crossing - values_in_loops(graph)
    for edge in dict.fromkeys((frozenset[int](), crossing)):
        for sharded in (edge.union(inner[:count]) for count in counts):
            if sharded:
                yield replace(
                    option,
                    sharded=sharded,
                    saved_bytes=option.saved_bytes - sum(_spared_bytes(problem, v, cuts[v]) for v in sharded),
                    recompute_s=option.recompute_s + _moved_s(problem, {v: cuts[v] for v in sharded}.items()),
                    gather_s=_moved_s(problem, {v: cuts[v] for v in sharded & elsewhere}.items()),
                )


def partition_of(problem: Problem, value: int) -> Partition | None:
    """The partition of a value that the planner may choose; None if the value stays replicated."""
    graph = problem.graph
    if not graph.mesh or value in problem.required or graph.producer[value] is None or value in graph.results:
        return None
    if graph.values[value].size_bytes < _MIN_BYTES:
        return None
    found = partition_with_axes(graph, value, Partition())
    return found if isinstance(found, Partition) else None


def _spared_bytes(problem: Problem, value: int, cut: Partition) -> int:
    """Bytes that sharding a value saves on each device, over all iterations."""
    residual_bytes = problem.graph.residual_bytes(value)
    return residual_bytes - residual_bytes // problem.graph.axis_size(cut.axis or "")


def _moved_s(problem: Problem, cuts: Iterable[tuple[int, Partition]]) -> float:
    """Seconds of the slices and all-gathers of some values, as in a replay."""
    graph, rates, total_s = problem.graph, problem.rates, 0.0
    for value, cut in cuts:
        full_bytes = graph.values[value].size_bytes
        part_bytes = full_bytes // graph.axis_size(cut.axis or "")
        kernel_s = rates.launch_s + (full_bytes + part_bytes) / rates.memory_bandwidth_bytes_per_s
        iterations = max(1, graph.residual_bytes(value) // max(1, full_bytes))
        total_s += iterations * (2 * kernel_s + rates.exchange_s(full_bytes - part_bytes))
    return total_s
