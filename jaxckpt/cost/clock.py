"""Clock of a replay: when each step runs, with the copies between device and host that run beside the kernels.

A simulation of two copy engines, one each way, and one stream of kernels. Each step, in order, does device work, starts
copies and waits for copies. The order matters: a wait is counted from the work that the step has done by then.

An iteration of a loop is replayed once, so its copies queue on the link within one iteration, and what they delay it by
counts in every iteration. A copy to the host starts where its value is computed and is done before the iteration ends;
one back starts when the iteration begins, and is waited for where it is read. Software pipelining carries copies over
an iteration: one to the host then has from the iteration's start until its value is computed anew, one back all of it.

Read after `transfers`; `buffer_liveness` drives it.
"""

from collections import defaultdict
from collections.abc import Iterable

from jaxckpt.cost.transfers import HostLinkQueue
from jaxckpt.ir import Graph


class StepClock:
    """The times of one replay; the link has one bandwidth each way.

    Attributes:
      seconds: Of each step that has ended, waiting for copies included.
      copied: Instances that are copied to the host or back.
    """

    def __init__(self, graph: Graph, host_bandwidth_bytes_per_s: float):
        self.seconds: list[float] = []
        self.copied: set[int] = set()
        self._link = HostLinkQueue(host_bandwidth_bytes_per_s)
        self._in_loops = LoopTransfers(graph, host_bandwidth_bytes_per_s)
        self._loop: int | None = None
        self._began_s = self._step_s = 0.0

    @property
    def stall_s(self) -> float:
        """Seconds of waiting for copies so far."""
        return self._link.stall_s + self._in_loops.stall_s

    @property
    def host_bytes(self) -> int:
        """The largest number of bytes on the host at once."""
        return self._link.peak_host_bytes

    def begin(self, loop: int | None) -> None:
        """Begins a step in the body of a loop."""
        if loop != self._loop:
            self._loop = loop
            self._in_loops.begin_iteration(loop, now_s=self._began_s)

    def end(self, loops: Iterable[int] = ()) -> None:
        """Ends a step, the last one of some loops."""
        for loop in loops:
            self._step_s += self._in_loops.end_wait_s(loop, now_s=self._began_s + self._step_s)
        self.seconds.append(self._step_s)
        self._began_s += self._step_s
        self._step_s = 0.0

    def work(self, seconds: float) -> None:
        """Counts device work of the step."""
        self._step_s += seconds

    def wait(self, instance: int) -> None:
        """Waits where a copy of an instance that the step needs is under way."""
        link = self._link if instance in self._link else self._in_loops
        if instance in link:
            self._step_s += link.wait(instance, now_s=self._began_s + self._step_s)

    def store(self, instance: int, size_bytes: int) -> None:
        """Starts a copy to the host, with the step, as copies run beside kernels."""
        self._link.store(instance, size_bytes, now_s=self._began_s)

    def load(self, stored: int, instance: int, size_bytes: int) -> None:
        """Starts to copy `stored` back from the host, as `instance`, with the step."""
        self._link.load_stored(stored, instance, size_bytes, now_s=self._began_s)
        self.copied.add(instance)

    def pass_on(self, instance: int, new: int) -> None:
        """Gives a copy under way another instance, behind a barrier."""
        self._link.pass_on(instance, new)

    def store_in_loop(self, instance: int, loop: int, size_bytes: int, *, stack_bytes: int, is_pipelined: bool) -> None:
        """Copies an iteration's value to its stack on the host; if pipelined, that of the iteration before."""
        now_s = self._began_s + self._step_s
        self._link.add_host_bytes(stack_bytes)
        self._in_loops.store(instance, loop, size_bytes, now_s=now_s, is_pipelined=is_pipelined)
        self._step_s += self._in_loops.wait(instance, now_s=now_s)
        self.copied.add(instance)

    def load_in_loop(self, instance: int, loop: int, size_bytes: int, *, stack_bytes: int, is_pipelined: bool) -> None:
        """Reads a value loaded since the iteration began; if pipelined, the load is for the next iteration."""
        self._link.add_host_bytes(-stack_bytes)
        self._in_loops.load(instance, loop, size_bytes, is_pipelined=is_pipelined)
        self.copied.add(instance)


class LoopTransfers:
    """The copies in the bodies of the loops of one replay; the link's bandwidth is of one direction."""

    def __init__(self, graph: Graph, bandwidth_bytes_per_s: float):
        self._graph = graph
        self._bandwidth_bytes_per_s = bandwidth_bytes_per_s
        self._began_s: dict[int, float] = {}
        self._queues: dict[int, HostLinkQueue] = {}
        self._at_end: defaultdict[int, list[int]] = defaultdict(list)
        """For each loop the copies that an iteration waits for at its end."""
        self._loop: dict[int, int] = {}
        self.stall_s = 0.0
        """Seconds of waiting so far, in all iterations."""

    def __contains__(self, instance: int) -> bool:
        return instance in self._loop

    def begin_iteration(self, loop: int | None, *, now_s: float) -> None:
        """Begins an iteration of a loop, and of those around it that have not begun."""
        for around in self._graph.path(loop):
            self._began_s.setdefault(around, now_s)

    def store(self, instance: int, loop: int, size_bytes: int, *, now_s: float, is_pipelined: bool) -> None:
        """Copies an iteration's value to the host; if pipelined, that of the iteration before, from the start on."""
        self._loop[instance] = loop
        start_s = 0.0 if is_pipelined else self._in_iteration_s(loop, now_s)
        self._of(loop).store(instance, size_bytes, now_s=start_s)
        if not is_pipelined:
            self._at_end[loop].append(instance)

    def load(self, instance: int, loop: int, size_bytes: int, *, is_pipelined: bool) -> None:
        """Copies back, from the start on, what an iteration reads; if pipelined, what the next one reads."""
        self._of(loop).load(instance, size_bytes, now_s=0.0)
        if is_pipelined:
            self._at_end[loop].append(instance)
        self._loop[instance] = loop

    def wait(self, instance: int, *, now_s: float) -> float:
        """Seconds that all iterations together wait for the copy of an instance."""
        loop = self._loop[instance]
        if instance in self._at_end[loop]:
            return 0.0
        return self._waited_s(instance, loop, now_s)

    def end_wait_s(self, loop: int, *, now_s: float) -> float:
        """Seconds that all iterations of a loop together wait at their end."""
        return sum(self._waited_s(instance, loop, now_s) for instance in self._at_end.pop(loop, ()))

    def _waited_s(self, instance: int, loop: int, now_s: float) -> float:
        in_iteration_s = self._in_iteration_s(loop, now_s)
        waited_s = self._of(loop).wait(instance, now_s=in_iteration_s) * self._graph.runs_per_step(loop)
        self.stall_s += waited_s
        return waited_s

    def _in_iteration_s(self, loop: int, now_s: float) -> float:
        """Seconds since the iteration began; the clock counts those of all iterations."""
        return (now_s - self._began_s[loop]) / self._graph.runs_per_step(loop)

    def _of(self, loop: int) -> HostLinkQueue:
        return self._queues.setdefault(loop, HostLinkQueue(self._bandwidth_bytes_per_s))
