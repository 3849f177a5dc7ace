"""Copies between device and host in a compiled program: the kernel that starts each, and the kernel that waits for it.

XLA writes them in two ways:

1. `copy-start` copies a full array, and `copy-done` waits for the copy.
2. In the body of a loop `dynamic-update-slice` stores the slice of an iteration in a residual stack in host memory, and
   `dynamic-slice` loads the slice. A copy engine carries out this kernel, mostly between `async-start` and
   `async-done`; a kernel without these is waited for at once.

Read after `memory` and `program`.
"""

from collections.abc import Callable

from jaxckpt.hlo.memory import Transfer
from jaxckpt.hlo.program import HloProgram
from jaxckpt.hlo.schema import Instruction, Shape, array_at, shape_bytes

_VIEWS = frozenset({"parameter", "bitcast", "copy", "reshape", "constant"})
"""Opcodes that a kernel which only copies a slice may hold besides the slice."""


class HostCopies:
    """The copies of a program; `is_host` is true if an array of a shape, with its layout, lies in host memory."""

    def __init__(self, program: HloProgram, is_host: Callable[[Shape], bool]):
        self._program = program
        self._is_host = is_host
        self._async_done = {
            instruction.operand_ids[0]: id_
            for id_, instruction in program.instructions.items()
            if instruction.opcode == "async-done" and id_ in program.position
        }
        self._starts = {
            called: id_ for id_ in self._async_done for called in program.instructions[id_].called_computation_ids
        }

    def of(self, id_: int) -> Transfer | None:
        """The copy that a kernel makes between device and host; None where the kernel does anything else."""
        instruction = self._program.instructions[id_]
        if instruction.opcode == "copy-start":
            result = array_at(instruction.shape, (0,))
            return self._copy(id_, shape_bytes(result), self._operand(instruction, 0), result)
        found = None
        for inner in self._program.inner(id_) if instruction.opcode == "fusion" else (instruction,):
            if inner.opcode in ("dynamic-slice", "dynamic-update-slice") and found is None:
                found = self._slice(id_, inner)
            elif inner.opcode not in _VIEWS:
                return None
        return found

    def _slice(self, id_: int, instruction: Instruction) -> Transfer | None:
        if instruction.opcode == "dynamic-slice":
            return self._copy(id_, shape_bytes(instruction.shape), self._operand(instruction, 0), instruction.shape)
        update = self._operand(instruction, 1)
        return self._copy(id_, shape_bytes(update), update, instruction.shape)

    def _copy(self, id_: int, size_bytes: int, read: Shape, result: Shape) -> Transfer | None:
        starts, to_host = self._program.position[id_], self._is_host(result)
        if self._is_host(read) == to_host:
            return None
        ends, count = max(starts, self._ends(id_)), self._program.count[id_]
        return Transfer(size_bytes=size_bytes, to_host=to_host, starts=starts, ends=ends, count=count)

    def _ends(self, id_: int) -> int:
        """The position of the first kernel that runs after a copy is done."""
        program = self._program
        if program.instructions[id_].opcode == "copy-start":
            waits = (program.position[user] for user in program.users[id_] if user in program.position)
            return min(waits, default=program.position[id_])
        start = self._starts.get(program.home[id_])
        return program.position[id_ if start is None else self._async_done[start]] + 1

    def _operand(self, instruction: Instruction, number: int) -> Shape:
        return self._program.instructions[instruction.operand_ids[number]].shape
