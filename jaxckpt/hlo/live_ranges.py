"""Live ranges of buffers (liveness, lifetime analysis), read back from XLA's simulation of its own heap.

The simulation is a list of events in the order of the schedule: a buffer is allocated by the instruction that defines
it, freed behind its last reader, or takes over the memory of another buffer. An event names the buffer's definition,
not the instruction at which the event happens. A free is therefore placed between the allocations around it, and there
at the buffer's last reader. No memory is asked for between these allocations, so that the peak is XLA's own in any
case.

Read after `program`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from jaxckpt.hlo.schema import Message

_FREE, _SHARE = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRange:
    """Positions of the first and the last kernel during which a buffer is in use, both included."""

    born: int
    dies: int


@dataclass(slots=True)
class _Space:
    """Memory that buffers hold one after the other: the last that took the memory over, and all not freed yet."""

    holder: int
    born: int
    last_read: int = 0
    members: set[int] = field(default_factory=set)


def live_ranges(
    trace: Message,
    *,
    born: Callable[[int], int | None],
    is_written: Callable[[int], bool],
    last_read: Callable[[int], int],
    end: int,
) -> tuple[Mapping[int, LiveRange], int]:
    """Reads the events of one heap (`schema.HeapSimulatorTrace`); `born` and `last_read` give positions of kernels.

    `is_written` is true if a kernel writes the buffer. Any other buffer only passes on memory of another buffer, as
    operands and results of loops do, and the other buffer lives on.

    Returns live ranges by the buffer's id, and how many events are not in the order of the schedule (0 if all is well).
    A buffer whose memory another buffer takes over ends where the other begins. A buffer without a live range hands its
    memory on within the kernel that makes it, or is no kernel's result.
    """
    positions = ((event, born(event.buffer_id)) for event in trace.events)
    events = [(event, at) for event, at in positions if at is not None]
    simulation = _Simulation(is_written, last_read)
    for (event, at), ahead in zip(events, _following(events, is_written, end), strict=True):
        if event.kind == _FREE:
            simulation.free(event.buffer_id, ahead)
        else:
            simulation.allocate(event, at)
    simulation.finish(end)
    return simulation.found, simulation.disorder


class _Simulation:
    def __init__(self, is_written: Callable[[int], bool], last_read: Callable[[int], int]):
        self.found: dict[int, LiveRange] = {}
        self.disorder = 0
        self._is_written = is_written
        self._last_read = last_read
        self._now = 0
        self._space: dict[int, _Space] = {}

    def allocate(self, event: Message, born: int) -> None:
        buffer, canonical = event.buffer_id, event.share_with_canonical_id
        if self._is_written(buffer):  # the place of a loop's operand in a schedule says nothing of that of kernels
            self.disorder += born < self._now
            self._now = max(self._now, born)
        space = self._space.get(canonical) if event.kind == _SHARE else None
        if space is None or not space.members:
            if space is not None and space.born < born <= self.found[space.holder].dies:  # freed just before
                self.found[space.holder] = LiveRange(born=space.born, dies=born - 1)
            space = _Space(holder=buffer, born=born)
            if event.kind == _SHARE:
                self._space[canonical] = space  # that buffer is free by now; the next one shares with this
        elif self._is_written(buffer):
            self._hand_over(space, buffer, born)
        space.members.add(buffer)
        space.last_read = max(space.last_read, self._last_read(buffer))
        self._space[buffer] = space

    def finish(self, end: int) -> None:
        """Buffers that are never freed live to the end."""
        for space in {id(space): space for space in self._space.values() if space.members}.values():
            self.found[space.holder] = LiveRange(born=space.born, dies=end)

    def _hand_over(self, space: _Space, buffer: int, born: int) -> None:
        if born > space.born:
            self.found[space.holder] = LiveRange(born=space.born, dies=born - 1)
            space.born = born
        space.holder = buffer
        space.last_read = 0

    def free(self, buffer: int, ahead: int) -> None:
        space = self._space.get(buffer)
        if space is None or buffer not in space.members:
            return
        space.members.discard(buffer)
        if not space.members:
            dies = min(max(space.last_read, self._now), max(ahead, self._now))
            self.found[space.holder] = LiveRange(born=space.born, dies=dies)


def _following(events: Sequence[tuple[Message, int]], is_written: Callable[[int], bool], end: int) -> list[int]:
    """For each event the last position before the next kernel's result, by which a buffer that is freed has ended."""
    following, ahead = [end] * len(events), end
    for index in range(len(events) - 1, -1, -1):
        following[index] = ahead
        event, born = events[index]
        if event.kind != _FREE and is_written(event.buffer_id):
            ahead = born - 1
    return following
