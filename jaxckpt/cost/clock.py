"""Third pass of a replay: when each step runs, with the copies between device and host that run beside the kernels.

A simulation of two copy engines, one each way, and one stream of kernels. Each step has events in order: seconds of
device work, copies that it starts, and copies that it waits for. The order matters: a wait is counted from the work
that the step has done by then. Copies in the body of a loop queue within one iteration (`loop_transfers`).

Read after `transfers` and `loop_transfers`; `replay` asks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxckpt.cost.loop_transfers import LoopTransfers
from jaxckpt.cost.transfers import HostLinkQueue
from jaxckpt.ir import Graph
from jaxckpt.schedule import ScheduleStep


@dataclass(frozen=True, slots=True)
class Wait:
    """The step needs an instance, and waits where a copy of it is under way."""

    instance: int


@dataclass(frozen=True, slots=True)
class Store:
    """The step starts a copy to the host."""

    instance: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Load:
    """The step starts to copy `stored` back from the host, as `instance`."""

    stored: int
    instance: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PassOn:
    """A copy under way passes a barrier, and has another instance from then on."""

    instance: int
    new: int


@dataclass(frozen=True, slots=True)
class CopyInLoop:
    """The step copies an iteration's value to its stack on the host, or reads one loaded since the iteration began.

    If pipelined, the store is of the iteration before, and the load for the next one.
    """

    instance: int
    loop: int
    size_bytes: int
    stack_bytes: int
    is_pipelined: bool
    to_host: bool


LinkEvent = Wait | Store | Load | PassOn | CopyInLoop
ClockEvent = float | LinkEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of each step, waiting for copies included, and the largest number of bytes on the host at once."""

    seconds: list[float]
    stall_s: float
    host_bytes: int


def clock(
    graph: Graph,
    steps: Sequence[ScheduleStep],
    events: Sequence[Sequence[ClockEvent]],
    *,
    last_step: Mapping[int, int],
    host_bandwidth_bytes_per_s: float,
) -> Times:
    """Plays the events of all steps; `last_step` gives the last step of a loop. The link has one bandwidth each way."""
    link = HostLinkQueue(host_bandwidth_bytes_per_s)
    in_loops = LoopTransfers(graph, host_bandwidth_bytes_per_s)
    loop: int | None = None
    seconds, began_s = [], 0.0
    for at, step in enumerate(steps):
        if step.loop != loop:
            loop = step.loop
            in_loops.begin_iteration(loop, now_s=began_s)
        step_s = 0.0
        for event in events[at]:
            step_s += event if isinstance(event, float) else _transfer_s(event, link, in_loops, began_s, step_s)
        for around in () if loop is None else graph.path(loop):
            if at == last_step[around]:
                step_s += in_loops.end_wait_s(around, now_s=began_s + step_s)
        seconds.append(step_s)
        began_s += step_s
    return Times(seconds=seconds, stall_s=link.stall_s + in_loops.stall_s, host_bytes=link.peak_host_bytes)


def _transfer_s(event: LinkEvent, link: HostLinkQueue, in_loops: LoopTransfers, began_s: float, step_s: float) -> float:
    """Starts or awaits a copy; returns the seconds that the step waits for it.

    A copy outside of loops starts with its step, as copies run beside kernels.
    """
    match event:
        case Wait(instance):
            if instance in link:
                return link.wait(instance, now_s=began_s + step_s)
            if instance in in_loops:
                return in_loops.wait_s(instance, now_s=began_s + step_s)
        case Store(instance, size_bytes):
            link.store(instance, size_bytes, now_s=began_s)
        case Load(stored, instance, size_bytes):
            link.load_stored(stored, instance, size_bytes, now_s=began_s)
        case PassOn(instance, new):
            link.pass_on(instance, new)
        case CopyInLoop(instance, loop, size_bytes, stack_bytes, is_pipelined, to_host=True):
            link.add_host_bytes(stack_bytes)
            in_loops.store(instance, loop, size_bytes, now_s=began_s + step_s, is_pipelined=is_pipelined)
            return in_loops.wait_s(instance, now_s=began_s + step_s)
        case CopyInLoop(instance, loop, size_bytes, stack_bytes, is_pipelined):
            link.add_host_bytes(-stack_bytes)
            in_loops.load(instance, loop, size_bytes, is_pipelined=is_pipelined)
    return 0.0
