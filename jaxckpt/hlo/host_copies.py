"""Copies between device and host in a compiled program: where each starts, and where somebody waits for it.

XLA writes them in two ways. A whole array is copied by `copy-start` and waited for by `copy-done`. In the body of a
loop a turn's slice is put into a stack in host memory by a `dynamic-update-slice`, or taken from it by a
`dynamic-slice`: a kernel of its own that a copy engine carries out, mostly between `async-start` and `async-done`, and
waited for at once where it is not.

Read after `memory` and `program`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jaxckpt.hlo.memory import Transfer
from jaxckpt.hlo.program import HloProgram
from jaxckpt.hlo.shapes import array_at, shape_bytes

_HANDS_ON = frozenset({"parameter", "bitcast", "copy", "reshape", "constant"})
"""What may stand beside the slice in a kernel that only copies it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCopy:
    """What one instruction copies, and which way."""

    size_bytes: int
    to_host: bool


class HostCopies:
    """The copies of a program.

    Args:
      program: The module.
      is_host: Whether an array of this shape, with its layout, lies in host memory.
    """

    def __init__(self, program: HloProgram, is_host: Callable[[Any], bool]):
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

    def of(self, id_: int) -> HostCopy | None:
        """What a kernel copies between device and host; None where it does anything else."""
        instruction = self._program.instructions[id_]
        if instruction.opcode == "copy-start":
            made = array_at(instruction.shape, (0,))
            return self._crossing(shape_bytes(made), self._operand(instruction, 0), made)
        found = None
        for inner in self._program.inner(id_) if instruction.opcode == "fusion" else (instruction,):
            if inner.opcode in ("dynamic-slice", "dynamic-update-slice") and found is None:
                found = self._slice(inner)
            elif inner.opcode not in _HANDS_ON:
                return None
        return found

    def transfers(self) -> Iterator[Transfer]:
        """All copies, in the order in which they start."""
        program = self._program
        for id_ in program.kernels:
            copy = self.of(id_)
            if copy is not None:
                starts = program.position[id_]
                yield Transfer(
                    size_bytes=copy.size_bytes,
                    to_host=copy.to_host,
                    starts=starts,
                    ends=max(starts, self._ends(id_)),
                    count=program.count[id_],
                )

    def _slice(self, instruction: Any) -> HostCopy | None:
        if instruction.opcode == "dynamic-slice":
            return self._crossing(shape_bytes(instruction.shape), self._operand(instruction, 0), instruction.shape)
        update = self._operand(instruction, 1)
        return self._crossing(shape_bytes(update), update, instruction.shape)

    def _crossing(self, size_bytes: int, read: Any, made: Any) -> HostCopy | None:
        leaves, arrives = self._is_host(read), self._is_host(made)
        return None if leaves == arrives else HostCopy(size_bytes=size_bytes, to_host=arrives)

    def _ends(self, id_: int) -> int:
        """The position of the first kernel that runs after a copy is done."""
        program = self._program
        if program.instructions[id_].opcode == "copy-start":
            waits = (program.position[user] for user in program.users[id_] if user in program.position)
            return min(waits, default=program.position[id_])
        start = self._starts.get(program.home[id_])
        return program.position[id_ if start is None else self._async_done[start]] + 1

    def _operand(self, instruction: Any, number: int) -> Any:
        return self._program.instructions[instruction.operand_ids[number]].shape
