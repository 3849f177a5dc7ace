"""Where a compiler starts the loads of offloaded values: at their barriers, but often later.

XLA's scheduler for GPUs places kernels and copies from the end of the program to its beginning, and gives every copy a
latency that is longer than any copy of a plan. Going back from a load's reader, it places the start of the load once
the latency has passed, or where nothing else can be placed: at the barrier behind which the load starts. At such a
barrier its clock jumps to the end of that load's latency. All other loads under way are then due as much sooner. So of
two loads that are under way at one time, the earlier has no more time before its reader than the later one.

A decoder of 8 layers of width 4,096, compiled for an H200 (jax 0.12.0.1), with all loads of one distance, in layers:
predicted waits of 21.2, 1.1 and 0.2 ms with distances of 1, 2 and 3, and 14.8, 1.8 and 1.8 ms as compiled. Without this
rule the model predicts 0.1 ms for the first. Positions count kernels, since the scheduler gives all of them one cost.
The rule is used for every target; no program for a TPU was looked at. Stores are taken to start behind their values:
some groups of them do, others start together behind the last value, and this rule would delay nearly all.

Complexity: quadratic in loads. Read after `kernels`; `buffer_liveness` asks.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Container, Sequence
from itertools import accumulate
from typing import NamedTuple

from jaxckpt.cost.kernels import StepKernel
from jaxckpt.schedule import Move, Run, Schedule


class _Load(NamedTuple):
    """A load, its position in the schedule, and the numbers of kernels before its barrier and its first reader."""

    step: Move
    at: int
    barrier: int
    reader: int


def loads_by_start(schedule: Schedule, by_step: Sequence[StepKernel | None]) -> dict[int, list[Move]]:
    """For each step of a schedule the loads, of those outside of loops, that start right before it."""
    loads = {
        step.writes[0]: (at, step)
        for at, step in enumerate(schedule.steps)
        if isinstance(step, Move) and step.restores and step.decision.on_host and step.loop is None
    }
    if not loads:
        return {}
    kernels_before = list(accumulate((each is not None and each.seconds > 0 for each in by_step), initial=0))
    readers = _first_readers(schedule, by_step, loads)
    found = [
        _Load(step, at, kernels_before[at], kernels_before[readers.get(instance, len(by_step))])
        for instance, (at, step) in loads.items()
    ]
    starts: defaultdict[int, list[Move]] = defaultdict(list)
    for load in found:
        kernels = max(_start_by(load, other) for other in found)
        starts[max(load.at, bisect_left(kernels_before, kernels))].append(load.step)
    return dict(starts)


def _start_by(load: _Load, other: _Load) -> int:
    """The number of kernels before a load's start, as another load allows."""
    if not load.barrier < other.barrier < load.reader:
        return load.barrier
    return max(load.barrier, other.barrier - max(0, other.reader - load.reader))


def _first_readers(schedule: Schedule, by_step: Sequence[StepKernel | None], loads: Container[int]) -> dict[int, int]:
    """For each loaded instance the first step that waits for it: a kernel, or the next barrier that it passes."""
    readers: dict[int, int] = {}
    for at, (step, kernel) in enumerate(zip(schedule.steps, by_step, strict=True)):
        if kernel is None and isinstance(step, Run):
            continue  # it runs in the kernel of a later step
        for instance in step.reads if kernel is None else kernel.reads:
            if instance in loads:
                readers.setdefault(instance, at)
    return readers
