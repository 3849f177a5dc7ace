"""Result of running a program under a budget, as frozen data, and how it is read off a machine. Read after `state`."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxckpt._shown import Shown
from jaxckpt._units import format_bytes, format_seconds
from jaxckpt.dynamic import state
from jaxckpt.dynamic.memory import Mode


class Status(enum.StrEnum):
    """How a run ended.

    Example:
      >>> from jaxckpt import dynamic
      >>> [each.name for each in dynamic.Status]
      ['OK', 'OUT_OF_MEMORY', 'THRASH', 'LOST']
    """

    OK = "ok"
    OUT_OF_MEMORY = "out of memory"
    """Nothing that may be evicted was left, or not in one piece."""
    THRASH = "thrash"
    """Recomputations reached their limit."""
    LOST = "lost"
    """A value that is read was freed for good."""


class EventKind(enum.StrEnum):
    """Kind of an event.

    Example:
      >>> from jaxckpt import dynamic
      >>> [each.name for each in dynamic.EventKind]
      ['RUN', 'EVICT', 'FREE', 'TAKE']
    """

    RUN = "run"
    EVICT = "evict"
    FREE = "free"
    TAKE = "take"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened: a call ran, or a tensor's memory was evicted, freed for good or taken over.

    Example:
      >>> from jaxckpt import dynamic
      >>> run = dynamic.simulate(dynamic.unit_chain(4), budget=3, evictor="dtr", record=True)
      >>> run.events[0].kind.name, run.events[0].id
      ('RUN', 0)
      >>> [event.id for event in run.events if event.kind is dynamic.EventKind.EVICT]
      [0, 3, 2, 4, 1, 5, 0, 6]
    """

    kind: EventKind
    id: int
    """Of the call, or of the tensor that owns the storage."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Simulation(Shown):
    """A run of a program under a budget.

    Attributes:
      evictor: The rule's name.
      mode: What the budget meant.
      budget_bytes: Of all that is in memory, constants with it; None where there was no limit.
      status: How it ended.
      reason: Why it did not end well; "" where it did.
      operations: Runs of calls, first ones and repetitions, plus one, as DTR's simulator counts.
      base_operations: First ones.
      recomputations: Repetitions.
      base_price: Of the first ones.
      recompute_price: Of the repetitions.
      forced_evictions: To make room.
      eager_evictions: At a release.
      banished: Storages freed for good.
      taken_over: Storages whose memory a new state took.
      peak_bytes: The most that was alive.
      searches: For something to evict.
      looked_at: Candidates, or blocks, that were scored in them.
      search_s: Seconds spent in them.
      run_s: Seconds of the whole run.
      refused: Requests that no free block could serve.
      free_share: The mean share of the memory that was free at those: fragmentation. 0 without addresses.
      largest_free_share: The mean share that the largest free block was.
      events: What happened, if it was recorded.

    Example:
      >>> from jaxckpt import dynamic
      >>> run = dynamic.simulate(dynamic.unit_chain(16), budget=8, evictor="dtr")
      >>> run.ok, run.recomputations, run.peak_bytes, run.overhead
      (True, 8, 8, 1.25)
      >>> dynamic.simulate(dynamic.unit_chain(16), budget=2, evictor="dtr").status.name
      'OUT_OF_MEMORY'
    """

    _report: ClassVar[str] = "jaxckpt.dynamic.compare.report:simulation_report"

    evictor: str
    mode: str
    budget_bytes: int | None
    status: Status
    reason: str
    operations: int
    base_operations: int
    recomputations: int
    base_price: float
    recompute_price: float
    forced_evictions: int
    eager_evictions: int
    banished: int
    taken_over: int
    peak_bytes: int
    searches: int
    looked_at: int
    search_s: float
    run_s: float
    refused: int
    free_share: float
    largest_free_share: float
    events: tuple[Event, ...] = ()

    @property
    def ok(self) -> bool:
        """True if the program ran to its end."""
        return self.status is Status.OK

    @property
    def overhead(self) -> float:
        """Price of everything over that of the first runs: 1 where nothing was recomputed."""
        return 1 + self.recompute_price / self.base_price if self.base_price else 1.0

    def summary(self) -> str:
        """The figures that matter most, in one line."""
        return str(self).splitlines()[0]

    def __str__(self) -> str:
        budget = "no limit" if self.budget_bytes is None else format_bytes(self.budget_bytes)
        lines = [
            f"{self.evictor} ({self.mode}), budget {budget}: {self.status}",
            *([f"  {self.reason}"] if self.reason else []),
            f"  operations   {self.base_operations + self.recomputations} = {self.base_operations} +"
            f" {self.recomputations} recomputed; "
            f"price x {self.overhead:.3f}",
            f"  evictions    {self.forced_evictions} forced, {self.eager_evictions} at a release",
            f"  peak         {format_bytes(self.peak_bytes)}",
            f"  searches     {self.searches}, {self.looked_at} candidates, {format_seconds(self.search_s)} "
            f"of {format_seconds(self.run_s)}",
        ]
        if self.refused:
            lines.append(
                f"  fragmentation {self.free_share:.1%} free at {self.refused} refused requests, "
                f"{self.largest_free_share:.1%} in one piece"
            )
        return "\n".join(lines)


STATUS = dict(enumerate(Status, start=state.DONE))
"""How a run ended, by the machine's own number for it."""
_KINDS = dict(enumerate(EventKind, start=state.EVENT_RUN))


def events_of(machine: state.Machine) -> Iterator[Event]:
    """Events that the machine recorded; `addresses` reads the positions in memory."""
    roots = machine.storages["root"].tolist()
    for what, which, _ in machine.events[: int(machine.now[0].events)].tolist():
        if what in _KINDS:
            yield Event(_KINDS[what], which if what == state.EVENT_RUN else roots[which])


def simulation_of(
    task: state.Task, machine: state.Machine, *, run_s: float = 0.0, events: tuple[Event, ...] = ()
) -> Simulation:
    """The counters of a machine that has stopped."""
    now = machine.now[0]
    status, refused = STATUS[int(now.status)], max(1, int(now.refused))
    return Simulation(
        **{name: now[name].item() for name in state.COUNTERS},
        evictor=task.rule.name,
        mode=task.memory.mode.name.lower(),
        budget_bytes=task.budget,
        status=status,
        reason="" if status is Status.OK else _reason(status, task, machine),
        operations=int(now.runs) + 1,
        base_operations=int(now.runs - now.recomputations),
        search_s=int(now.search_ns) / 1e9,
        run_s=run_s,
        free_share=float(now.free_share) / refused,
        largest_free_share=float(now.largest_free_share) / refused,
        events=events,
    )


def _reason(status: Status, task: state.Task, machine: state.Machine) -> str:
    now = machine.now[0]
    where = "a constant" if now.failed < 0 else f"call {int(now.failed)}"
    if status is Status.THRASH:
        return (
            f"{int(now.recomputations)} recomputations of price {now.recompute_price:g} at {where}, "
            f"statement {int(now.statement)} of {len(machine.statements)}"
        )
    if status is Status.LOST:
        return f"{where} is needed again after what it reads was freed for good"
    addressed = task.memory.mode in (Mode.HINT, Mode.HARD)
    free = machine.blocks.area[0].free_bytes if addressed else max(now.budget - now.memory, 0)
    return (
        f"{where} needs {format_bytes(int(now.needed))}; {format_bytes(int(free))} are free, "
        f"{format_bytes(int(now.memory))} alive, {int(now.candidate_count)} storages may be evicted"
    )
