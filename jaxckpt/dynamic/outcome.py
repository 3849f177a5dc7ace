"""A machine before a run, and what is said of it afterwards.

Read after `state` and `simulation`.
"""

from collections.abc import Iterator

from jaxckpt._units import format_bytes
from jaxckpt.dynamic import state
from jaxckpt.dynamic.memory import Mode
from jaxckpt.dynamic.simulation import Event, EventKind, Simulation, Status

STATUS = {
    state.DONE: Status.OK,
    state.OUT_OF_MEMORY: Status.OUT_OF_MEMORY,
    state.THRASHED: Status.THRASH,
    state.LOST: Status.LOST,
}
"""How a run ended, by the machine's own number for it."""
KINDS = (EventKind.RUN, EventKind.EVICT, EventKind.FREE, EventKind.TAKE)
"""Event kinds by the machine's own number."""


def events_of(parts: state.Layout, machine: state.Machine) -> Iterator[Event]:
    """Events that the machine recorded; `addresses` reads the positions in memory."""
    for what, which, _ in machine.events[: int(machine.now[0].events)].tolist():
        if what < len(KINDS):
            kind = KINDS[what]
            yield Event(kind, which if kind is EventKind.RUN else parts.storage_ids[which])


def simulation_of(task: state.Task, machine: state.Machine, *, run_s: float, events: tuple[Event, ...]) -> Simulation:
    """The counters of a machine that has stopped."""
    now = machine.now[0]
    refused = int(now.regret)
    status = STATUS[int(now.status)]
    return Simulation(
        evictor=task.rule.name,
        mode=task.memory.mode.name.lower(),
        budget_bytes=task.budget,
        status=status,
        reason="" if status is Status.OK else _reason(status, task, machine),
        operations=int(now.runs) + 1,
        base_operations=int(now.runs - now.recomputed),
        recomputations=int(now.recomputed),
        base_price=float(now.first),
        recompute_price=float(now.repeated_price),
        forced_evictions=int(now.forced),
        eager_evictions=int(now.eager),
        banished=int(now.banished),
        taken_over=int(now.taken),
        peak_bytes=int(now.peak),
        searches=int(now.searches),
        looked_at=int(now.looked),
        search_s=int(now.search_ns) / 1e9,
        run_s=run_s,
        refused=refused,
        free_share=float(now.free_share) / refused if refused else 0.0,
        largest_free_share=float(now.largest_share) / refused if refused else 0.0,
        events=events,
    )


def _reason(status: Status, task: state.Task, machine: state.Machine) -> str:
    now = machine.now[0]
    where = "a constant" if now.failed < 0 else f"call {int(now.failed)}"
    if status is Status.THRASH:
        return (
            f"{int(now.recomputed)} recomputations of price {now.repeated_price:g} at {where}, "
            f"step {int(now.step)} of {len(machine.steps)}"
        )
    if status is Status.LOST:
        return f"{where} is needed again after what it reads was freed for good"
    addressed = task.memory.mode in (Mode.HINT, Mode.HARD)
    free = machine.blocks.area[0].free_bytes if addressed else max(now.budget - now.memory, 0)
    return (
        f"{where} needs {format_bytes(int(now.needed))}; {format_bytes(int(free))} are free, "
        f"{format_bytes(int(now.memory))} alive, {int(now.evictable)} storages may be evicted"
    )
