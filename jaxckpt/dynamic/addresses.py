"""Where everything lay in memory, from the first execution to the last: what can be drawn and watched.

Time is counted in executions of calls, repetitions with them. Read after `simulator`.
"""

from dataclasses import dataclass, replace
from typing import Unpack

from jaxckpt.dynamic import state
from jaxckpt.dynamic.memory import MEMORIES, Memory, Mode
from jaxckpt.dynamic.program import Constant, Program
from jaxckpt.dynamic.simulation import Simulation, simulation_of
from jaxckpt.dynamic.simulator import AS_PUBLISHED, Budget, RunKeywords, RunOptions, ended, task_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Residence:
    """A value in one place for some time.

    Attributes:
      tensor: The tensor that owns the storage.
      address: Where it begins, bytes from the start of the memory.
      size_bytes: How much it takes.
      begin: The execution for which it was put there.
      end: First execution at which the value is no longer at this address; the number of executions if it stays to the
        end.
      kind: "state" (nobody computes it, or it is a new state in the place of the old one), "dense" or "cheap".

    Example:
      >>> from jaxckpt import dynamic
      >>> found = dynamic.address_map(dynamic.unit_chain(8), budget=4, evictor="dtr_eq")
      >>> found.at(3)[0]
      Residence(tensor=0, address=0, size_bytes=1, begin=0, end=4, kind='cheap')
    """

    tensor: int
    address: int
    size_bytes: int
    begin: int
    end: int
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A request that no free block could serve.

    Attributes:
      execution: For which it was made.
      needed_bytes: The request.
      free_bytes: In all free blocks together.

    Example:
      >>> from jaxckpt import dynamic
      >>> found = dynamic.address_map(dynamic.unit_chain(8), budget=4, evictor="dtr_eq")
      >>> found.refusals[0]
      Refusal(execution=4, needed_bytes=1, free_bytes=0)
    """

    execution: int
    needed_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressMap:
    """All residences of a run.

    Attributes:
      budget_bytes: The size of the memory.
      calls: For each execution its call.
      residences: In the order in which they began.
      refusals: In order.
      simulation: What is counted of the run.

    Example:
      >>> from jaxckpt import dynamic
      >>> found = dynamic.address_map(dynamic.unit_chain(8), budget=4, evictor="dtr_eq")
      >>> found.budget_bytes, len(found.calls), len(found.refusals)
      (4, 21, 5)
      >>> [each.address for each in found.at(3)]
      [0, 1, 2, 3]
    """

    budget_bytes: int
    calls: tuple[int, ...]
    residences: tuple[Residence, ...]
    refusals: tuple[Refusal, ...]
    simulation: Simulation

    def at(self, execution: int) -> tuple[Residence, ...]:
        """Storages in memory during an execution, by address."""
        resident = (each for each in self.residences if each.begin <= execution < each.end)
        return tuple(sorted(resident, key=lambda each: each.address))


def address_map(
    program: Program, *, budget: Budget, options: RunOptions = AS_PUBLISHED, **keywords: Unpack[RunKeywords]
) -> AddressMap:
    """Simulates a program and says where everything lay.

    Arguments are those of `simulate`; the budget is not None, and the memory has addresses: by default what the rule
    was published with, or one hard block.

    Returns:
      A map; it ends where the run ended.

    Example:
      >>> from jaxckpt.dynamic import unit_chain
      >>> found = address_map(unit_chain(8), budget=4, evictor="dtr_eq")
      >>> found.simulation.ok, [each.address for each in found.at(3)], len(found.calls)
      (True, [0, 1, 2, 3], 21)
    """
    options = replace(options, **keywords)
    rule = options.rule
    program = program.priced_by_bytes() if rule.by_bytes else program
    memory = options.memory or MEMORIES.get(rule.name, Memory(mode=Mode.HARD))
    task, parts = task_of(program, budget, replace(options, memory=memory)), state.layout(program)
    machine = ended(parts, task, record=int(ended(parts, task).now[0].events))
    unplaced, events = _unplaced(program, machine), machine.events.tolist()
    executed, resident, residences, refusals = 0, dict[int, Residence](), list[Residence](), list[Refusal]()
    for what, which, figure in events:  # one branch for each kind of event
        if what == state.EVENT_RUN:
            executed += 1
        elif what == state.EVENT_PLACE:
            # A new state gets its place behind the execution that made it; all others before theirs.
            resident[which] = replace(unplaced[which], address=figure, begin=executed)
        elif what == state.EVENT_REFUSE:
            needed_bytes = unplaced[which].size_bytes
            refusals.append(Refusal(execution=executed, needed_bytes=needed_bytes, free_bytes=figure))
        elif which in resident:
            residences.append(replace(resident.pop(which), end=executed))
    residences += [replace(residence, end=executed) for residence in resident.values()]
    return AddressMap(
        budget_bytes=int(machine.blocks.area[0].bytes),
        calls=tuple(which for what, which, _ in events if what == state.EVENT_RUN),
        residences=tuple(sorted(residences, key=lambda residence: residence.begin)),
        refusals=tuple(refusals),
        simulation=simulation_of(task, machine),
    )


def _unplaced(program: Program, machine: state.Machine) -> list[Residence]:
    """A residence for each storage, without its place and its time."""
    pairs = (pair for call in program.calls for pair in zip(call.writes, call.replaces, strict=False))
    states = {each.tensor for each in program.statements if isinstance(each, Constant)}
    states |= {new for new, old in pairs if old is not None}
    found = []
    for root, size_bytes, dense in machine.storages[["root", "bytes", "dense"]].tolist():
        kind = "state" if root in states else "dense" if dense else "cheap"
        found.append(Residence(tensor=root, address=0, size_bytes=size_bytes, begin=0, end=0, kind=kind))
    return found
