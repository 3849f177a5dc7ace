"""Provenance of every instruction: scope, op, line and part of the step, from its op name or from its neighbours.

XLA keeps op names through most of its passes. Instructions that XLA adds (copies, views, converted weights) have no op
name and take the provenance of an operand, or else of a user. An unmarked instruction is update where it follows from
the backward pass, else forward; the same rule as for jaxprs in `jaxckpt.trace.phase`.

Read after `origin` and `program`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from jaxckpt.hlo.memory import Part
from jaxckpt.hlo.origin import Origin, mark_depth, origin_of
from jaxckpt.hlo.program import HloProgram
from jaxckpt.hlo.schema import Instruction

_AFTER_FORWARD = frozenset({Part.BACKWARD, Part.RECOMPUTE, Part.UPDATE})
_SOURCES = frozenset({"parameter", "constant"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where an instruction came from; `Part.UNKNOWN` where nothing around it says so."""

    scope: str = ""
    op: str = ""
    part: Part = Part.UNKNOWN
    source: str = ""


class Provenances:
    """The provenance of each instruction of a program, found when asked."""

    def __init__(self, program: HloProgram):
        self._program = program
        self._origins = {
            id_: origin_of(instruction.metadata.op_name)
            for id_, instruction in program.instructions.items()
            if "/" in instruction.metadata.op_name and instruction.opcode not in _SOURCES  # others are XLA's own words
        }
        self._depth = mark_depth(self._origins.values())
        self._parts: dict[int, Part] = {}
        self._found: dict[int, Provenance] = {}
        for id_ in program.sequence:
            self._parts[id_] = self._part(id_)
        self._correct_unmarked()
        for id_ in program.sequence:
            self._found[id_] = self._own(id_)
        for id_ in reversed(program.sequence):
            if self._found[id_].part is Part.UNKNOWN:
                self._found[id_] = self._first_known(program.users[id_])

    def of(self, id_: int) -> Provenance:
        """The provenance of a scheduled instruction."""
        return self._found.get(id_, Provenance())

    def inside(self, id_: int, defining: Instruction) -> Provenance:
        """The provenance of one result of a fusion, by the instruction inside that makes it."""
        around = self.of(id_)
        origin = self._origins.get(defining.id)
        if origin is None or defining.id == id_:
            return around
        part = origin.part(self._depth)
        return Provenance(
            scope=origin.scope,
            op=origin.op,
            part=self._parts[id_] if part is None else part,
            source=self._source(defining) or around.source,
        )

    def _correct_unmarked(self) -> None:
        """Gives unmarked forward work after the start of the backward the part of its readers.

        Initialisers of gradient accumulators are such work, and the learning rate.
        """
        after_forward = False
        for id_ in self._program.sequence:
            after_forward |= self._parts[id_] in _AFTER_FORWARD
            origin = self._origin(id_) if after_forward and self._parts[id_] is Part.FORWARD else None
            if origin is not None and origin.part(self._depth) is None:
                readers, _ = self._program.readers((id_, ()))
                parts = {self._parts.get(reader, Part.UNKNOWN) for reader in readers} & _AFTER_FORWARD
                self._parts[id_] = Part.BACKWARD if Part.BACKWARD in parts else Part.UPDATE

    def _part(self, id_: int) -> Part:
        """The part by mark, else by what it reads."""
        origin = self._origin(id_)
        part = None if origin is None else origin.part(self._depth)
        if part is not None:
            return part
        instruction = self._program.instructions[id_]
        if instruction.opcode in _SOURCES:
            return Part.UNKNOWN
        read = {self._parts.get(operand, Part.UNKNOWN) for operand in instruction.operand_ids}
        if origin is None:
            return next((each for each in Part if each in read and each is not Part.UNKNOWN), Part.UNKNOWN)
        return Part.UPDATE if read & _AFTER_FORWARD else Part.FORWARD

    def _origin(self, id_: int) -> Origin | None:
        """The origin of an instruction, else of the first instruction fused into it."""
        if id_ in self._origins:
            return self._origins[id_]
        if self._program.instructions[id_].opcode != "fusion":
            return None
        return next((self._origins[i.id] for i in self._program.inner(id_) if i.id in self._origins), None)

    def _own(self, id_: int) -> Provenance:
        origin, instruction = self._origin(id_), self._program.instructions[id_]
        if origin is None:
            return self._first_known(instruction.operand_ids)
        return Provenance(scope=origin.scope, op=origin.op, part=self._parts[id_], source=self._source(instruction))

    def _first_known(self, ids: Iterable[int]) -> Provenance:
        known = (self._found[id_] for id_ in ids if id_ in self._found)
        return next((each for each in known if each.part is not Part.UNKNOWN), Provenance())

    def _source(self, instruction: Instruction) -> str:
        metadata = instruction.metadata
        if metadata.source_file:
            return f"{metadata.source_file}:{metadata.source_line}"
        return self._frames.get(metadata.stack_frame_id, "")

    @cached_property
    def _frames(self) -> dict[int, str]:
        """For each stack frame "file:line"; numbers in the index count from 1."""
        index = self._program.module.stack_frame_index
        frames = {}
        for number, frame in enumerate(index.stack_frames, 1):
            location = index.file_locations[frame.file_location_id - 1]
            frames[number] = f"{index.file_names[location.file_name_id - 1]}:{location.line}"
        return frames
