"""Def-use chains and the flat schedule of a compiled module.

The order is that of XLA's own live ranges: the condition and the body of a loop precede the loop itself, asynchronous
work follows its start. Readers of a value are found through all instructions that only pass the value on: tuples,
views, loops, calls. Read after `schema`.
"""

import json
from collections.abc import Iterable, Iterator
from functools import cached_property

from jaxckpt.hlo.schema import Computation, Instruction, Message

_VIEWS = frozenset({"bitcast", "opt-barrier", "domain", "add-dependency"})
_CALLS = frozenset({"while", "call", "conditional", "async-start"})
_NO_WORK = frozenset(
    {
        "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "opt-barrier", "domain", "after-all",
        "add-dependency", "partition-id", "replica-id", "while", "call", "conditional", "async-start", "async-done",
    }
)  # fmt: skip
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "ragged-all-to-all")
"""Opcodes that exchange data with other devices; some end in "-start" or "-done"."""

ValueId = tuple[int, tuple[int, ...]]
"""A value: the id of an instruction, and the index of an array in its (possibly nested) tuple."""


class HloProgram:
    """A module's instructions, schedule and def-use chains.

    Attributes:
      home: For each instruction the id of its computation.
      sequence: Ids of all scheduled instructions in the order in which they run.
      position: For each of them the position of the kernel that it is, or of the one before it; of what starts
        asynchronous work, the one behind it.
      kernels: Ids of those that do work, in order.
      count: For each scheduled instruction how often it runs in one call of the program: each branch of a conditional
        as often as the others, so that it may be a fraction; the condition of a loop never where XLA knows the trip
        count, for then XLA's runtime counts on the host.
    """

    def __init__(self, module: Message):
        self.module = module
        self.computations: dict[int, Computation] = {c.id: c for c in module.computations}
        self.instructions: dict[int, Instruction] = {i.id: i for c in module.computations for i in c.instructions}
        self.home: dict[int, int] = {i.id: c.id for c in module.computations for i in c.instructions}
        self._order = {s.key: list(s.value.instruction_ids) for s in module.schedule.sequences}
        self.count: dict[int, float] = {}
        self.sequence: list[int] = []
        self._flatten(module.entry_computation_id, 1, frozenset())
        self.kernels: list[int] = []
        self.position: dict[int, int] = {}
        for id_ in self.sequence:
            if self.instructions[id_].opcode not in _NO_WORK:
                self.kernels.append(id_)
            self.position[id_] = max(0, len(self.kernels) - 1)
            if self.instructions[id_].opcode == "async-start":
                self.position[id_] = len(self.kernels)

    @cached_property
    def entry_parameters(self) -> dict[int, int]:
        """The id of each parameter of the program, by number."""
        entry = self.computations[self.module.entry_computation_id]
        return {i.parameter_number: i.id for i in entry.instructions if i.opcode == "parameter"}

    @cached_property
    def users(self) -> dict[int, list[int]]:
        """For each instruction those that it is an operand of."""
        users: dict[int, list[int]] = {id_: [] for id_ in self.instructions}
        for id_, instruction in self.instructions.items():
            for operand in dict.fromkeys(instruction.operand_ids):
                users[operand].append(id_)
        return users

    def readers(self, value: ValueId) -> tuple[frozenset[int], bool]:
        """Ids of the instructions that work on a value, and whether the program returns the value."""
        readers: set[int] = set()
        result, returned = self.computations[self.module.entry_computation_id].root_id, False
        seen = {value}
        pending = [value]
        while pending:
            id_, index = pending.pop()
            returned |= id_ == result
            for reader, passed_on in self._uses(id_, index):
                if passed_on is None:
                    readers.add(reader)
                elif passed_on not in seen:
                    seen.add(passed_on)
                    pending.append(passed_on)
        return frozenset(readers), returned

    def inner(self, id_: int) -> Iterable[Instruction]:
        """The instructions of the computations that an instruction calls, those of a fusion for one."""
        for called in self.instructions[id_].called_computation_ids:
            yield from self.computations[called].instructions

    def defining(self, value: ValueId) -> Instruction:
        """The instruction that computes a value: inside a fusion that makes several, the one of this result."""
        id_, index = value
        instruction = self.instructions[id_]
        if instruction.opcode != "fusion" or not instruction.called_computation_ids:
            return instruction
        fused = self.computations[instruction.called_computation_ids[0]]
        root = self.instructions[fused.root_id]
        if index and root.opcode == "tuple" and index[0] < len(root.operand_ids):
            return self.instructions[root.operand_ids[index[0]]]
        return instruction

    def trip_count(self, id_: int) -> int | None:
        """How often a loop runs; None where XLA does not know."""
        try:
            config = json.loads(self.instructions[id_].backend_config or b"{}")
            return int(config["known_trip_count"]["n"])
        except (ValueError, KeyError, TypeError):
            return None

    def _flatten(self, computation: int, count: float, inside: frozenset[int]) -> None:
        if computation not in self._order or computation in inside:
            return
        inside |= {computation}
        for id_ in self._order[computation]:
            self.count[id_] = count
            start = len(self.sequence)
            for called, times in self._runs(id_, count):
                self._flatten(called, times, inside)
            is_async = self.instructions[id_].opcode == "async-start"
            self.sequence.insert(start if is_async else len(self.sequence), id_)

    def _runs(self, id_: int, count: float) -> list[tuple[int, float]]:
        """The scheduled computations that an instruction runs, in order, and how often it runs each in all."""
        instruction = self.instructions[id_]
        called = list(instruction.called_computation_ids)
        match instruction.opcode:
            case "while":
                body, condition = called
                trip_count = self.trip_count(id_)
                return [(condition, count if trip_count is None else 0), (body, count * (trip_count or 1))]
            case "call" | "conditional":
                ways = len(called)
                share = count // ways if count % ways == 0 else count / ways  # a whole number where it can be one
                return [(each, share) for each in called]
            case "async-start":
                return [(each, count) for each in called]
        return []

    @cached_property
    def _callers(self) -> dict[int, list[int]]:
        """For each computation the loops, calls and branches that run it."""
        callers: dict[int, list[int]] = {}
        for id_ in self.sequence:
            instruction = self.instructions[id_]
            if instruction.opcode in _CALLS:
                for called in instruction.called_computation_ids:
                    callers.setdefault(called, []).append(id_)
        return callers

    def _parameter(self, computation: int, number: int) -> int | None:
        for instruction in self.computations[computation].instructions:
            if instruction.opcode == "parameter" and instruction.parameter_number == number:
                return int(instruction.id)
        return None

    def _uses(self, id_: int, index: tuple[int, ...]) -> Iterator[tuple[int, ValueId | None]]:
        """For each use of a value the user and the value that it passes on; None where the user reads the value."""
        for user in self.users[id_]:
            yield from self._uses_by(user, id_, index)
        computation = self.home[id_]
        if id_ == self.computations[computation].root_id:
            for caller in self._callers.get(computation, ()):
                yield from self._uses_of_result(caller, index)

    def _uses_by(self, user: int, id_: int, index: tuple[int, ...]) -> Iterator[tuple[int, ValueId | None]]:
        """The uses of a value by one instruction."""
        instruction = self.instructions[user]
        match instruction.opcode:
            case "get-tuple-element" | "copy-done":  # a copy-done takes the first, 0, of (copy, original, context)
                if index[:1] == (instruction.tuple_index,):
                    yield user, (user, index[1:])
            case "tuple":
                for number, operand in enumerate(instruction.operand_ids):
                    if operand == id_:
                        yield user, (user, (number, *index))
            case opcode if opcode in _CALLS:
                yield from self._uses_in_call(user, id_, index)
            case opcode if opcode in _VIEWS:
                yield user, (user, index)
            case _:
                yield user, None

    def _uses_of_result(self, caller: int, index: tuple[int, ...]) -> Iterator[tuple[int, ValueId | None]]:
        """Uses of a computation's result by the instruction that runs the computation."""
        if self.instructions[caller].opcode == "async-start":
            for user in self.users[caller]:
                if self.instructions[user].opcode == "async-done":
                    yield user, (user, index)
            return
        yield caller, (caller, index)
        if self.instructions[caller].opcode == "while":
            yield from self._to_parameters(caller, 0, index)

    def _uses_in_call(self, user: int, id_: int, index: tuple[int, ...]) -> Iterator[tuple[int, ValueId | None]]:
        instruction = self.instructions[user]
        for number, operand in enumerate(instruction.operand_ids):
            if operand != id_:
                continue
            if instruction.opcode == "while":
                yield user, None  # the next iteration reads it too
                yield user, (user, index)
                yield from self._to_parameters(user, 0, index)
            elif instruction.opcode == "async-start":
                yield from ((done, None) for done in self.users[user])  # until then it is being read
                yield from self._to_parameters(user, number, index)
            elif instruction.opcode == "call":
                yield from self._to_parameters(user, number, index)
            elif number:
                branch = instruction.called_computation_ids[number - 1]
                parameter = self._parameter(branch, 0)
                if parameter is not None:
                    yield user, (parameter, index)
            else:
                yield user, None

    def _to_parameters(self, user: int, number: int, index: tuple[int, ...]) -> Iterator[tuple[int, ValueId | None]]:
        for called in self.instructions[user].called_computation_ids:
            parameter = self._parameter(called, number)
            if parameter is not None:
                yield user, (parameter, index)
