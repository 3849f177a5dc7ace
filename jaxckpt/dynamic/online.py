"""The engine asked call by call, for whoever has real arrays to evict and measures prices as it goes.

Going through an `Online` goes through the calls of the program, and says for each what has to be done, in order: what
to drop, what to compute again, the call itself. `Online.reprice` then takes what the call has cost, which decides from
then on. It is the engine of `simulate`, stopped behind each call: with the same prices it decides the same.

Read after `simulator`.
"""

from collections.abc import Iterator

from jaxckpt.dynamic import state
from jaxckpt.dynamic.engine import run
from jaxckpt.dynamic.program import Program
from jaxckpt.dynamic.simulation import STATUS, Event, Simulation, Status, events_of, simulation_of
from jaxckpt.dynamic.state import Task, layout, machine_of

_MOST_EVENTS = 2**16
"""For one call; what takes more of them is given up."""


class Online:
    """A run of a program that stops behind each call.

    Args:
      program: Its prices are first guesses.
      task: The rule, the memory and the budget.

    Example:
      >>> from jaxckpt.dynamic import Memory, evictor, unit_chain
      >>> online = Online(unit_chain(16), Task(budget=8, rule=evictor("dtr"), memory=Memory()))
      >>> sum(event.kind == "run" for events in online for event in events), online.simulation(0.0).operations
      (40, 41)
    """

    def __init__(self, program: Program, task: Task):
        self._task = task
        self._machine = machine_of(layout(program), task, record=max(_MOST_EVENTS, 4 * len(program.calls)))
        codes = self._machine.statements[:, 0].tolist()
        self._stops = iter([*(at + 1 for at, what in enumerate(codes) if what == state.RUN), len(codes)])

    def __iter__(self) -> Iterator[tuple[Event, ...]]:
        """For each call what has to be done, the call itself last; then what is left to do at the end.

        It ends early where the engine cannot go on; `simulation` says why.
        """
        now = self._machine.now
        for stop in self._stops:
            now["events"] = 0
            run(self._machine, stop)
            if int(now["events"][0]) > len(self._machine.events):
                now["status"], now["events"] = state.THRASHED, len(self._machine.events)
            yield tuple(events_of(self._machine))
            if self.status is not None and self.status is not Status.OK:
                return

    @property
    def status(self) -> Status | None:
        """How it ended; None before."""
        return STATUS.get(int(self._machine.now["status"][0]))

    def reprice(self, call: int, price: float) -> None:
        """Says what the call that was just made for the first time has cost."""
        m = self._machine
        now, c = m.now[0], m.calls[call]
        more = price - float(c.cost)
        c.cost = price
        before = float(now.clock)
        now.clock += more
        now.base_price += more
        tensors = m.tensors[int(c.out) : int(c.out + c.outs)]
        for s in dict.fromkeys(tensors["storage"].tolist()):
            made = m.storages[s]
            made.cost += more
            if made.class_ >= 0:  # evicted already
                m.classes[made.class_].value += more
            if made.last == before:
                made.last = now.clock

    def simulation(self, run_s: float) -> Simulation:
        """The counters at the end, with the seconds of the whole run, which the caller knows."""
        return simulation_of(self._task, self._machine, run_s=run_s)
