"""Origins of instructions in the user's program, parsed from XLA's op names.

`jit(step)/transpose(jvp(GPT))/block_3/qkv/dot_general` is the backward of the matrix product in the scope
GPT/block_3/qkv. The text is JAX's name stack and the primitive; names of jitted functions and of the bodies of loops
are in the text too and are no scopes. `jaxckpt.ir.scope` explains marks.

XLA keeps op names through most of its passes. Instructions that XLA adds (copies, views, converted weights) have no op
name and take the provenance of an operand, or else of a user. An unmarked instruction is update where it follows from
the backward pass, else forward; the same rule as for jaxprs in `jaxckpt.trace.phase`.

Read after `program`.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxckpt.hlo.memory import AFTER_FORWARD, Frame, Part
from jaxckpt.hlo.program import HloProgram
from jaxckpt.hlo.schema import Instruction, Message
from jaxckpt.ir.scope import JVP, TRANSPOSE, Marks, is_recomputed, path_of_marks

_WRAPPED = re.compile(r"([A-Za-z_0-9]+)\((.*)\)", re.DOTALL)
_FUNCTIONS = frozenset({"jit", "pjit", "xla_call"})
_LOOPS = re.compile(r"while/(body|cond)|cond/branch_\d+_fun")
_SHARD_MAP = "shard_map"
_SOURCES = frozenset({"parameter", "constant"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where an instruction came from; its primitive is "" where nothing is said. Marks are outermost first."""

    scope: str = ""
    op: str = ""
    marks: Marks = ()

    def part(self, depth: int = 0) -> Part | None:
        """The part of the step, by the outermost mark; None where there is none.

        `depth` marks of differentiation stand around everything (see `mark_depth`).
        """
        if is_recomputed(self.marks):
            return Part.RECOMPUTE
        marks = [mark for mark in self.marks if mark in (JVP, TRANSPOSE)][depth:]
        if not marks:
            return None
        return Part.BACKWARD if marks[0] == TRANSPOSE else Part.FORWARD


@functools.lru_cache(maxsize=65536)
def origin_of(op_name: str) -> Origin:
    """Reads an op name.

    Example:
      >>> origin = origin_of("jit(step)/transpose(jvp(GPT))/block_3/qkv/dot_general")
      >>> origin.scope, origin.op, str(origin.part())
      ('GPT/block_3/qkv', 'dot_general', 'backward')
    """
    *around, op = _split(op_name.partition(";")[0])  # of an instruction that XLA merged of several, the first
    marks = tuple(mark for token in _without_loops(around) for mark in _marks(token))
    return Origin(scope=path_of_marks(marks), op=op, marks=marks)


def mark_depth(origins: Iterable[Origin]) -> int:
    """How many `jvp` stand around every transpose: a forward-over-reverse product has one more than others."""
    depths = [
        marks.index(TRANSPOSE)
        for origin in origins
        if TRANSPOSE in (marks := [mark for mark in origin.marks if mark in (JVP, TRANSPOSE)])
    ]
    return min(depths, default=0)


def _split(op_name: str) -> list[str]:
    """Splits at slashes that stand in no parenthesis."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(op_name):
        depth += (character == "(") - (character == ")")
        if character == "/" and depth <= 0:
            parts.append(op_name[start:at])
            start = at + 1
    return [*parts, op_name[start:]]


def _without_loops(tokens: list[str]) -> Iterator[str]:
    """Drops what JAX writes for the bodies of loops and branches, and for functions of shards."""
    at = 0
    while at < len(tokens):
        if _LOOPS.fullmatch("/".join(tokens[at : at + 2])):
            at += 2
        elif tokens[at] == _SHARD_MAP:
            at += 1
        else:
            yield tokens[at]
            at += 1


def _marks(token: str) -> Iterator[tuple[str, bool]]:
    """The marks of "transpose(jvp(GPT))": two transformations and a name; none of "jit(step)"."""
    match = _WRAPPED.fullmatch(token)
    if match is None:
        if token:
            yield token, False
    elif match[1] not in _FUNCTIONS:
        yield match[1], True
        for inner in _split(match[2]):
            yield from _marks(inner)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where an instruction came from; `Part.UNKNOWN` where nothing around it says so.

    `frame` is XLA's number of the stack frame of `source`, 0 where there is none.
    """

    scope: str = ""
    op: str = ""
    part: Part = Part.UNKNOWN
    source: str = ""
    frame: int = 0


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
        part, source = origin.part(self._depth), self._source(defining)
        return Provenance(
            scope=origin.scope,
            op=origin.op,
            part=self._parts[id_] if part is None else part,
            source=source or around.source,
            frame=defining.metadata.stack_frame_id if source else around.frame,
        )

    def _correct_unmarked(self) -> None:
        """Gives unmarked forward work after the start of the backward the part of its readers.

        Initialisers of gradient accumulators are such work, and the learning rate.
        """
        after_forward = False
        for id_ in self._program.sequence:
            after_forward |= self._parts[id_] in AFTER_FORWARD
            origin = self._origin(id_) if after_forward and self._parts[id_] is Part.FORWARD else None
            if origin is not None and origin.part(self._depth) is None:
                readers, _ = self._program.readers((id_, ()))
                parts = {self._parts.get(reader, Part.UNKNOWN) for reader in readers} & AFTER_FORWARD
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
        return Part.UPDATE if read & AFTER_FORWARD else Part.FORWARD

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
        return Provenance(
            scope=origin.scope,
            op=origin.op,
            part=self._parts[id_],
            source=self._source(instruction),
            frame=instruction.metadata.stack_frame_id,
        )

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
        return {number: _location(index, frame)[1] for number, frame in enumerate(index.stack_frames, 1)}


def stack_frames(index: Message, innermost: Sequence[int]) -> tuple[tuple[Frame, ...], tuple[int, ...]]:
    """The stacks above frames by XLA's numbers: all frames of these, callers first, and the position of each one."""
    frames, position = list[Frame](), {0: -1}
    for frame in innermost:
        chain = []
        while frame not in position and frame not in chain and 0 < frame <= len(index.stack_frames):
            chain.append(frame)
            frame = index.stack_frames[frame - 1].parent_frame_id
        for number in reversed(chain):
            function, source = _location(index, index.stack_frames[number - 1])
            caller = position.get(index.stack_frames[number - 1].parent_frame_id, -1)
            position[number] = len(frames)
            frames.append(Frame(function=function, source=source, caller=caller))
    return tuple(frames), tuple(position.get(frame, -1) for frame in innermost)


def _location(index: Message, frame: Message) -> tuple[str, str]:
    """The function of a frame, and "file:line"."""
    if not 0 < frame.file_location_id <= len(index.file_locations):
        return "", ""
    location = index.file_locations[frame.file_location_id - 1]
    has_name = 0 < location.function_name_id <= len(index.function_names)
    function = index.function_names[location.function_name_id - 1] if has_name else ""
    return function, f"{index.file_names[location.file_name_id - 1]}:{location.line}"
