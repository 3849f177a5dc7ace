"""Shard variants of each stage's options: saved values sharded over a mesh axis until the backward.

A value that is replicated on n devices then takes an nth of its bytes, and costs a slice in the forward pass and an
all-gather in the backward. Nothing runs concurrently with these, so the seconds of the stages' options add up. The
stage's own saved values are sharded in its subproblem (`stage_problem`), so their bytes and seconds come from a replay.
Boundary values are gathered in the next stage: the seconds of their slice and gather are added to the stage that
produces them. Axis and dimension are the ones that an open partition of a policy gets (`jaxckpt.schedule.partition`).

Read after `options`; `offload_options` joins both kinds of variants.
"""

from collections.abc import Iterator
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


def _moved_s(problem: Problem, value: int, cut: Partition) -> float:
    """Seconds of the slices and all-gathers of a value, as in a replay."""
    graph, rates = problem.graph, problem.rates
    full_bytes = graph.values[value].size_bytes
    part_bytes = full_bytes // graph.axis_size(cut.axis or "")
    kernel_s = rates.launch_s + (full_bytes + part_bytes) / rates.memory_bandwidth_bytes_per_s
    iterations = max(1, graph.residual_bytes(value) // max(1, full_bytes))
    return iterations * (2 * kernel_s + rates.exchange_s(full_bytes - part_bytes))
