"""From when to when a buffer is in use: XLA's simulation of its own heap, read back.

The simulation is a list of events in the order of the schedule: a buffer is allocated where the instruction that
defines it runs, freed behind its last reader, or takes over the memory of another one. An event names the buffer's
definition, not the instruction at which it happens; so a free is placed between the allocations around it, and there at
the buffer's last reader. Within such a gap no memory is asked for, so the peak is XLA's own whatever we choose.

Read after `program`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_FREE, _SHARE = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRange:
    """Positions of the first and the last kernel during which a buffer is in use, both included."""

    born: int
    dies: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    kind: int
    buffer: int
    born: int
    shares_with: int


@dataclass(slots=True)
class _Space:
    """Memory that one buffer after the other holds: the last one that took it over, and all that are not freed yet."""

    holder: int
    born: int
    last_read: int = 0
    members: set[int] = field(default_factory=set)


def live_ranges(
    trace: Any,
    *,
    born: Callable[[int], int | None],
    is_written: Callable[[int], bool],
    last_read: Callable[[int], int],
    end: int,
) -> tuple[Mapping[int, LiveRange], int]:
    """Reads the events of one heap.

    Args:
      trace: The message (`schema.HeapSimulatorTrace`).
      born: For a buffer's id the position of the kernel that defines it, None where there is none.
      is_written: Whether a kernel writes a buffer; else it only hands on another one's memory, as what enters and
        leaves a loop does, and that other one lives on.
      last_read: For a buffer's id the position of its last reader.
      end: Position of the last kernel.

    Returns:
      Lifetimes by the buffer's id, and how many events are not in the order of the schedule (0 when we understand it).
      A buffer that another one takes over ends where that one begins; one that hands its memory on within the
      kernel that made it, or only hands memory on, has no lifetime of its own.
    """
    simulation = _Simulation(born, is_written, last_read, end)
    events = list(simulation.known(trace.events))
    for event, ahead in zip(events, _following(events, end), strict=True):
        simulation.happen(event, ahead)
    simulation.finish()
    return simulation.found, simulation.disorder


class _Simulation:
    def __init__(
        self,
        born: Callable[[int], int | None],
        is_written: Callable[[int], bool],
        last_read: Callable[[int], int],
        end: int,
    ):
        self.found: dict[int, LiveRange] = {}
        self.disorder = 0
        self._born = born
        self._is_written = is_written
        self._last_read = last_read
        self._end = end
        self._now = 0
        self._space: dict[int, _Space] = {}

    def known(self, events: Iterable[Any]) -> Iterator[_Event]:
        for event in events:
            at = self._born(event.buffer_id)
            if at is not None:
                yield _Event(
                    kind=event.kind, buffer=event.buffer_id, born=at, shares_with=event.share_with_canonical_id
                )

    def happen(self, event: _Event, ahead: int) -> None:
        if event.kind == _FREE:
            self._free(event.buffer, ahead)
            return
        self.disorder += event.born < self._now
        self._now = max(self._now, event.born)
        space = self._space.get(event.shares_with) if event.kind == _SHARE else None
        if space is None or not space.members:
            self._end_before(space, event)
            space = _Space(holder=event.buffer, born=event.born)
            if event.kind == _SHARE:
                self._space[event.shares_with] = space  # that buffer is free by now; the next one shares with this
        elif self._is_written(event.buffer):
            self._hand_over(space, event)
        space.members.add(event.buffer)
        space.last_read = max(space.last_read, self._last_read(event.buffer))
        self._space[event.buffer] = space

    def finish(self) -> None:
        """What is never freed lives to the end."""
        for space in {id(space): space for space in self._space.values() if space.members}.values():
            self.found[space.holder] = LiveRange(born=space.born, dies=self._end)

    def _end_before(self, space: _Space | None, event: _Event) -> None:
        """A buffer freed just before another one takes its memory in the same kernel is gone when that one is there."""
        if space is not None and space.born < event.born <= self.found[space.holder].dies:
            self.found[space.holder] = LiveRange(born=space.born, dies=event.born - 1)

    def _hand_over(self, space: _Space, event: _Event) -> None:
        if event.born > space.born:
            self.found[space.holder] = LiveRange(born=space.born, dies=event.born - 1)
            space.born = event.born
        space.holder = event.buffer
        space.last_read = 0

    def _free(self, buffer: int, ahead: int) -> None:
        space = self._space.get(buffer)
        if space is None or buffer not in space.members:
            return
        space.members.discard(buffer)
        if not space.members:
            dies = min(max(space.last_read, self._now), max(ahead, self._now))
            self.found[space.holder] = LiveRange(born=space.born, dies=dies)


def _following(events: list[_Event], end: int) -> list[int]:
    """For each event the last position before the next allocation: a buffer freed here is gone by then."""
    following, ahead = [end] * len(events), end
    for index in range(len(events) - 1, -1, -1):
        following[index] = ahead
        if events[index].kind != _FREE:
            ahead = events[index].born - 1
    return following
