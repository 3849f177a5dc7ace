"""Copies between device and host in the bodies of loops: each iteration starts its own and waits for them.

An iteration is replayed once, so its copies queue on the link within one iteration, and what they delay it by counts in
every iteration. A copy to the host starts where its value is computed and is done before the iteration ends; one back
starts when the iteration begins, and is waited for where it is read. Software pipelining carries copies over an
iteration: one to the host then has from the iteration's start until its value is computed anew, one back all of it.

Read after `transfers`; `clock` asks.
"""

from collections import defaultdict

from jaxckpt.cost.transfers import HostLinkQueue
from jaxckpt.ir import Graph


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

    def wait_s(self, instance: int, *, now_s: float) -> float:
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
