"""Copies between device and host in the bodies of loops: each turn starts its own and waits for them.

A turn is replayed once, so its copies queue on the link within one turn and what they delay it by counts in every turn.
A copy to the host starts where its value is made and is done before the turn ends; one back is started when the turn
begins, and waited for where it is read. Carried a turn ahead, the one has the turn from its start until its value is
made anew, the other the whole of it.

Read after `copies` and `turns`; `replay` asks.
"""

from collections import defaultdict

from jaxckpt.cost.transfers import HostLinkQueue
from jaxckpt.ir import Graph


class LoopTransfers:
    """The copies in the bodies of the loops of one replay.

    Args:
      graph: The step.
      bandwidth_bytes_per_s: Of the link, one direction.
    """

    def __init__(self, graph: Graph, bandwidth_bytes_per_s: float):
        self._graph = graph
        self._bandwidth_bytes_per_s = bandwidth_bytes_per_s
        self._began_s: dict[int, float] = {}
        self._copies: dict[int, HostLinkQueue] = {}
        self._at_end: defaultdict[int, list[int]] = defaultdict(list)
        self._loop: dict[int, int] = {}
        self.stall_s = 0.0
        """Seconds of waiting so far, in all turns."""

    def __contains__(self, instance: int) -> bool:
        return instance in self._loop

    def begin_iteration(self, loop: int | None, *, now_s: float) -> None:
        """Begins a turn of a loop, and of those around it that have not begun."""
        for around in self._graph.path(loop):
            self._began_s.setdefault(around, now_s)

    def store(self, instance: int, loop: int, size_bytes: int, *, now_s: float, ahead: bool) -> None:
        """Copies to the host what a turn has made; a turn ahead: what the one before has made, from its start on."""
        self._loop[instance] = loop
        start_s = 0.0 if ahead else self._in_turn_s(loop, now_s)
        self._of(loop).store(instance, size_bytes, now_s=start_s)
        if not ahead:
            self._at_end[loop].append(instance)

    def load(self, instance: int, loop: int, size_bytes: int, *, ahead: bool) -> None:
        """Copies back what a turn reads, from its start on; a turn ahead: what the next one reads."""
        self._of(loop).load(instance, size_bytes, now_s=0.0)
        if ahead:
            self._at_end[loop].append(instance)
        self._loop[instance] = loop

    def wait_s(self, instance: int, *, now_s: float) -> float:
        """Seconds that all turns together wait for the copy of an instance."""
        loop = self._loop[instance]
        if instance in self._at_end[loop]:
            return 0.0
        return self._waited_s(instance, loop, now_s)

    def end_wait_s(self, loop: int, *, now_s: float) -> float:
        """Seconds that all turns of a loop together wait at their end."""
        return sum(self._waited_s(instance, loop, now_s) for instance in self._at_end.pop(loop, ()))

    def _waited_s(self, instance: int, loop: int, now_s: float) -> float:
        waited_s = self._of(loop).wait(instance, now_s=self._in_turn_s(loop, now_s)) * self._graph.runs_per_step(loop)
        self.stall_s += waited_s
        return waited_s

    def _in_turn_s(self, loop: int, now_s: float) -> float:
        return (now_s - self._began_s[loop]) / self._graph.runs_per_step(loop)

    def _of(self, loop: int) -> HostLinkQueue:
        return self._copies.setdefault(loop, HostLinkQueue(self._bandwidth_bytes_per_s))
