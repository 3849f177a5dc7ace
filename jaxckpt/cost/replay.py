"""Replay of a schedule: bytes alive after every step, and the seconds that the schedule takes.

Three passes over data, each in a file of its own:

1. `kernels`: what the steps run, and what of it is in memory (`fusion`).
2. `buffer_liveness`: how long each buffer lives, and with the `clock` when each step runs. Needs what the kernels read.
3. `peak`: bytes alive at every step. Needs all live ranges. The `heap` holds the peak and what is free in between.

One thing is moved before to where compilers put it: optimiser updates run as soon as their operands are available, so
that gradients need not be alive together. Compilers schedule updates so, wherever they are in the step.

Every predicted peak is computed here: solvers, plans and reports all ask `replay`. What the model misses shows up as
the difference between predicted and compiled bytes. Complexity: linear in steps times the (small) number of sources.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from jaxckpt.cost.buffer_liveness import BufferLiveness
from jaxckpt.cost.fusion import Fusion
from jaxckpt.cost.heap import heap_bytes
from jaxckpt.cost.kernels import ScheduleKernels
from jaxckpt.cost.loop_liveness import Span
from jaxckpt.cost.peak import heap_ranges, live_bytes
from jaxckpt.cost.rates import ArithmeticCosts, Rates
from jaxckpt.ir import Graph
from jaxckpt.schedule import Run, Schedule, ScheduleStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Bytes and seconds of a schedule.

    Attributes:
      live_bytes: After each step of `steps`, device bytes of temporaries, the step's own workspace included.
      heap_ranges: Live ranges of these temporaries, in kernels and copies.
      steps: The schedule's steps, in the order in which they were replayed.
      births: For each buffer (an instance) the index of the step that makes it.
      deaths: For each buffer the index of the last step that reads it.
      seconds: For each step the seconds of the kernel that it starts, in all iterations of the loops around; 0
        where the step runs in the kernel of a later one.
      recompute_s: Seconds of the kernels of clones, part of `step_s`.
      stall_s: Seconds of waiting for copies between device and host, part of `step_s`.
      host_bytes: The largest number of bytes on the host at once.
    """

    live_bytes: tuple[int, ...]
    heap_ranges: tuple[Span, ...]
    steps: tuple[ScheduleStep, ...]
    births: dict[int, int]
    deaths: dict[int, int]
    seconds: tuple[float, ...]
    step_s: float
    recompute_s: float
    stall_s: float = 0.0
    host_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        """The largest number of bytes alive at once."""
        return max(self.live_bytes, default=0)

    @property
    def heap_bytes(self) -> int:
        """Bytes that a compiler allocates for temporaries; computed anew each time."""
        return heap_bytes(self.heap_ranges, self.peak_bytes)

    def alive_at(self, step: int) -> tuple[int, ...]:
        """The buffers alive at a step, as instances."""
        return tuple(b for b, birth in self.births.items() if birth <= step <= self.deaths[b])


def replay(
    graph: Graph,
    schedule: Schedule,
    *,
    fusion: Fusion,
    arithmetic: ArithmeticCosts,
    rates: Rates,
    is_full_step: bool = True,
) -> Replay:
    """Replays a schedule symbolically; `peak_bytes` is of temporaries alone, neither arguments nor results.

    `is_full_step` is true if the graph is a step, whose results have memory from the start; false for a part of one.
    """
    schedule = replace(schedule, steps=tuple(_updates_early(graph, schedule)))
    kernels = ScheduleKernels(graph, schedule, fusion.rules, arithmetic, rates)
    buffers = BufferLiveness(graph, kernels)
    clock = buffers.clock
    external = {*graph.inputs, *graph.constants}
    for instance in schedule.outputs:
        external.update(kernels.sources[instance])
    results = {schedule.outputs[position] for position in graph.unaliased_outputs} if is_full_step else set()
    ranges = heap_ranges(buffers, external=external, results=results)
    # XLA counts lives in instructions: ops that are fused into others, and barriers, do not make a life longer.
    written_at = {span.birth for span in ranges}
    started = list(accumulate(int(k is not None or at in written_at) for at, k in enumerate(kernels.by_step)))
    return Replay(
        live_bytes=live_bytes(ranges, len(schedule.steps)),
        heap_ranges=tuple(Span(started[span.birth], started[span.death], span.size_bytes) for span in ranges),
        steps=schedule.steps,
        births={buffer: at for buffer, at in buffers.births.items() if buffer not in external},
        deaths=buffers.deaths,
        seconds=tuple(clock.seconds),
        step_s=sum(clock.seconds),
        recompute_s=kernels.recompute_s,
        stall_s=clock.stall_s,
        host_bytes=clock.host_bytes,
    )


def _updates_early(graph: Graph, schedule: Schedule) -> Iterator[ScheduleStep]:
    """The steps of a schedule with each update moved up to where its last operand is written."""
    if not graph.updates:
        yield from schedule.steps
        return
    moved = _moved_updates(graph, schedule)
    after: defaultdict[int, list[ScheduleStep]] = defaultdict(list)
    for at, position in moved.items():
        after[position].append(schedule.steps[at])
    for at, step in enumerate(schedule.steps):
        if at not in moved:
            yield step
        if at in after:
            yield from after[at]


def _moved_updates(graph: Graph, schedule: Schedule) -> dict[int, int]:
    """For each step that is an update the step after which it can run; not before the loop that it is in."""
    updates, moved = graph.updates, dict[int, int]()
    available = [0] * len(schedule.origin)
    begins: dict[int | None, int] = {}
    for at, step in enumerate(schedule.steps):
        if step.loop is not None:
            begins.setdefault(step.loop, at)
        position = at
        if isinstance(step, Run) and step.op in updates and not step.is_clone:
            position = max([available[i] for i in step.reads], default=at)
            position = position if step.loop is None else max(position, begins[step.loop])
            moved[at] = position
        for instance in step.writes:
            available[instance] = position
    return moved
