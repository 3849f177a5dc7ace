"""Clock of a replay: when each step runs, with the copies between device and host that run beside the kernels.

A simulation of two copy engines, one each way, and one stream of kernels. Each step, in order, does device work, starts
copies and waits for copies. The order matters: a wait is counted from the work that the step has done by then.

An iteration of a loop is replayed once, so its copies queue on the link within one iteration, and what they delay it by
counts in every iteration. A copy to the host starts where its value is computed and is done before the iteration ends;
one back starts when the iteration begins, and is waited for where it is read. Software pipelining carries copies over
an iteration: one to the host then has from the iteration's start until its value is computed anew, one back all of it.

Read after `rates`; `buffer_liveness` drives it.
"""

from collections import defaultdict
from collections.abc import Iterable

from jaxckpt.ir import Graph


class HostLinkQueue:
    """Copies queued on the host link, one at a time each way, in the order in which they are started.

    Example:
      >>> link = HostLinkQueue(1e9)
      >>> link.store(7, 2_000_000, now_s=0.0)
      >>> link.wait(7, now_s=0.0005)
      0.0015
    """

    def __init__(self, bandwidth_bytes_per_s: float):
        self._bandwidth_bytes_per_s = bandwidth_bytes_per_s
        self._out_s = 0.0
        self._in_s = 0.0
        self._done_s: dict[int, float] = {}
        self._host_bytes = 0
        self.peak_host_bytes = 0
        """The largest number of bytes on the host at once."""
        self.stall_s = 0.0
        """Seconds of waiting so far."""

    def __contains__(self, instance: int) -> bool:
        return instance in self._done_s

    def store(self, instance: int, size_bytes: int, *, now_s: float) -> None:
        """Starts a copy to the host, that of `instance`."""
        self._out_s = self._done_s[instance] = max(self._out_s, now_s) + size_bytes / self._bandwidth_bytes_per_s
        self.add_host_bytes(size_bytes)

    def load_stored(self, stored: int, instance: int, size_bytes: int, *, now_s: float) -> None:
        """Starts to copy `stored` back as `instance`, once it has arrived on the host."""
        self.load(instance, size_bytes, now_s=max(now_s, self._done_s.get(stored, now_s)))
        self.add_host_bytes(-size_bytes)

    def load(self, instance: int, size_bytes: int, *, now_s: float) -> None:
        """Starts a copy from the host, of a value that arrived there before, as `instance`."""
        self._in_s = self._done_s[instance] = max(self._in_s, now_s) + size_bytes / self._bandwidth_bytes_per_s

    def add_host_bytes(self, size_bytes: int) -> None:
        """Counts bytes more on the host; fewer, where `size_bytes` is negative."""
        self._host_bytes += size_bytes
        self.peak_host_bytes = max(self.peak_host_bytes, self._host_bytes)

    def pass_on(self, instance: int, new: int) -> None:
        """Gives a copy another instance, behind a barrier."""
        self._done_s[new] = self._done_s[instance]

    def wait(self, instance: int, *, now_s: float) -> float:
        """Seconds from now until the copy of an instance is done; waiting is counted."""
        waited_s = max(0.0, self._done_s.get(instance, now_s) - now_s)
        self.stall_s += waited_s
        return waited_s


class StepClock:
    """The times of one replay; the link has one bandwidth each way.

    Attributes:
      seconds: Of each step that has ended, waiting for copies included.
      copied: Instances that are copied back, or copied in a loop.
    """

    def __init__(self, graph: Graph, host_bandwidth_bytes_per_s: float):
        self.seconds: list[float] = []
        self.copied: set[int] = set()
        self._graph = graph
        self._bandwidth_bytes_per_s = host_bandwidth_bytes_per_s
        self._link = HostLinkQueue(host_bandwidth_bytes_per_s)
        self._stall_in_loops_s = 0.0
        self._loop: int | None = None
        self._step_began_s = self._step_s = 0.0
        self._loop_began_s: dict[int, float] = {}
        self._queues: dict[int, HostLinkQueue] = {}
        """For each loop the copies of an iteration."""
        self._at_end: defaultdict[int, list[int]] = defaultdict(list)
        """For each loop the copies that an iteration waits for at its end."""
        self._loop_of: dict[int, int] = {}
        """The loop of each instance that is copied in one."""

    @property
    def stall_s(self) -> float:
        """Seconds of waiting for copies so far, in all iterations."""
        return self._link.stall_s + self._stall_in_loops_s

    @property
    def host_bytes(self) -> int:
        """The largest number of bytes on the host at once."""
        return self._link.peak_host_bytes

    @property
    def _now_s(self) -> float:
        return self._step_began_s + self._step_s

    def begin(self, loop: int | None) -> None:
        """Begins a step in the body of a loop."""
        if loop != self._loop:
            self._loop = loop
            for around in self._graph.path(loop):
                self._loop_began_s.setdefault(around, self._step_began_s)

    def pass_step(self) -> None:
        """Passes a step outside of loops that has no work and no copies."""
        self.seconds.append(0.0)

    def end(self, loops: Iterable[int] = ()) -> None:
        """Ends a step, the last one of some loops."""
        for loop in loops:
            self._step_s += sum(self._waited_s(instance, loop) for instance in self._at_end.pop(loop, ()))
        self.seconds.append(self._step_s)
        self._step_began_s += self._step_s
        self._step_s = 0.0

    def work(self, seconds: float) -> None:
        """Counts device work of the step."""
        self._step_s += seconds

    def wait(self, instance: int) -> None:
        """Waits where a copy of an instance that the step needs is under way."""
        loop = self._loop_of.get(instance)
        if instance in self._link:
            self._step_s += self._link.wait(instance, now_s=self._now_s)
        elif loop is not None and instance not in self._at_end[loop]:
            self._step_s += self._waited_s(instance, loop)

    def store(self, instance: int, size_bytes: int) -> None:
        """Starts a copy to the host, with the step, as copies run beside kernels."""
        self._link.store(instance, size_bytes, now_s=self._step_began_s)

    def load(self, stored: int, instance: int, size_bytes: int) -> None:
        """Starts to copy `stored` back from the host, as `instance`, with the step."""
        self._link.load_stored(stored, instance, size_bytes, now_s=self._step_began_s)
        self.copied.add(instance)

    def add_host_bytes(self, size_bytes: int) -> None:
        """Counts bytes that are on the host without a copy."""
        self._link.add_host_bytes(size_bytes)

    def wait_at_end(self, instance: int) -> None:
        """Waits behind the last step for a copy."""
        waited_s = self._link.wait(instance, now_s=self._now_s)
        self.seconds[-1] += waited_s
        self._step_began_s += waited_s

    def pass_on(self, instance: int, new: int) -> None:
        """Gives a copy under way another instance, behind a barrier."""
        self._link.pass_on(instance, new)

    def store_in_loop(self, instance: int, loop: int, size_bytes: int, *, stack_bytes: int, is_pipelined: bool) -> None:
        """Copies an iteration's value to its stack on the host; if pipelined, that of the iteration before."""
        self._link.add_host_bytes(stack_bytes)
        start_s = 0.0 if is_pipelined else self._in_iteration_s(loop)
        self._queue(instance, loop, waits_at_end=not is_pipelined).store(instance, size_bytes, now_s=start_s)
        self.wait(instance)

    def load_in_loop(self, instance: int, loop: int, size_bytes: int, *, stack_bytes: int, is_pipelined: bool) -> None:
        """Copies back, from the start on, what an iteration reads; if pipelined, what the next one reads."""
        self._link.add_host_bytes(-stack_bytes)
        self._queue(instance, loop, waits_at_end=is_pipelined).load(instance, size_bytes, now_s=0.0)

    def _queue(self, instance: int, loop: int, *, waits_at_end: bool) -> HostLinkQueue:
        """The queue of a loop's copies, for one more."""
        self.copied.add(instance)
        self._loop_of[instance] = loop
        if waits_at_end:
            self._at_end[loop].append(instance)
        return self._queues.setdefault(loop, HostLinkQueue(self._bandwidth_bytes_per_s))

    def _waited_s(self, instance: int, loop: int) -> float:
        """Seconds that all iterations together wait for the copy of an instance."""
        in_iteration_s = self._in_iteration_s(loop)
        waited_s = self._queues[loop].wait(instance, now_s=in_iteration_s) * self._graph.runs_per_step(loop)
        self._stall_in_loops_s += waited_s
        return waited_s

    def _in_iteration_s(self, loop: int) -> float:
        """Seconds since the iteration began; the clock counts those of all iterations."""
        return (self._now_s - self._loop_began_s[loop]) / self._graph.runs_per_step(loop)
