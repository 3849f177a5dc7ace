"""Reads XLA's module and buffer assignment into a `MemoryMap`, and compares sums with XLA's own totals.

Read after `memory`, `program`, `origin`, `live_ranges`, `buffer_roles`, `instruction_cost`, `host_copies`.
"""

import functools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from google.protobuf.message import DecodeError

from jaxckpt._errors import HloError
from jaxckpt._records import shared_fields
from jaxckpt._units import format_bytes
from jaxckpt.hlo import schema
from jaxckpt.hlo.buffer_roles import logits_elements, role_of, use_of
from jaxckpt.hlo.host_copies import HostCopies
from jaxckpt.hlo.instruction_cost import with_cost
from jaxckpt.hlo.live_ranges import LiveRange, live_ranges
from jaxckpt.hlo.memory import Allocation, Buffer, Kernel, MemoryMap, Space, Use, backward_position
from jaxckpt.hlo.origin import Provenance, Provenances, stack_frames
from jaxckpt.hlo.program import HloProgram, ValueId
from jaxckpt.hlo.schema import (
    HOST_SPACE,
    TUPLE,
    Computation,
    Instruction,
    Message,
    array_at,
    dtype_of,
    element_count,
    shape_bytes,
)

_REMATERIALISED = re.compile(r"\.remat\d*(\.|$)")
"""How XLA's rematerialisation pass names the copies that it makes."""


def memory_from_hlo(data: bytes, *, platform: str = "cuda", argument_paths: Sequence[str] = ()) -> MemoryMap:
    """Reads what XLA dumps as `*after_optimizations.hlo.pb`: a serialised `HloProto` with its buffer assignment.

    The platform tells which memory spaces are on the chip; `argument_paths` has for each parameter of the program the
    path of its leaf among the step's arguments. Raises an `HloError` for anything else, as `parse_hlo`.
    """
    return _MemoryReader(parse_hlo(data), platform, argument_paths).memory()


def parse_hlo(data: bytes) -> Message:
    """The `HloProto` in some bytes; an `HloError` without a scheduled module and a buffer assignment."""
    try:
        message = schema.Hlo.FromString(data)
    except DecodeError as error:
        raise _damaged(f"{len(data)} bytes that are no protocol buffer of XLA") from error
    if not message.hlo_module.computations:
        raise _damaged("a message without any computation")
    if not message.hlo_module.schedule.sequences:
        raise _damaged(f"module {message.hlo_module.name!r} without a schedule")
    if not message.buffer_assignment.buffer_allocations:
        raise _damaged(f"module {message.hlo_module.name!r} without a buffer assignment")
    problem = next(_inconsistencies(message), None)
    if problem is not None:
        raise _damaged(f"module {message.hlo_module.name!r} in which {problem}")
    return message


def _damaged(got: str) -> HloError:
    return HloError(
        "a compiled program cannot be read.",
        got=got,
        needed="XLA's dump of a module after optimisation, whole, with its schedule and its buffer assignment",
        advice="dump it with XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_as_proto' and hand in DIR",
    )


def _inconsistencies(message: Message) -> Iterator[str]:
    """References to things that do not exist, as in a cut or edited file; those behind the first may raise."""
    module = message.hlo_module
    computations = {c.id: c for c in module.computations}
    if module.entry_computation_id not in computations:
        yield "the entry computation is missing"
    for computation in module.computations:
        yield from _computation_inconsistencies(computation, computations.keys())
    instructions = {i.id: i for c in module.computations for i in c.instructions}
    yield from _schedule_inconsistencies(module, instructions.keys())
    buffers = {b.id: b for b in message.buffer_assignment.logical_buffers}
    for buffer in buffers.values():
        yield from _buffer_inconsistencies(buffer, instructions)
    for allocation in message.buffer_assignment.buffer_allocations:
        yield from _allocation_inconsistencies(allocation, buffers)


def _schedule_inconsistencies(module: Message, instructions: Collection[int]) -> Iterator[str]:
    scheduled = {id_ for sequence in module.schedule.sequences for id_ in sequence.value.instruction_ids}
    if not scheduled.issubset(instructions):
        yield "the schedule runs an instruction that is missing"
    if module.entry_computation_id not in {sequence.key for sequence in module.schedule.sequences}:
        yield "the entry computation is not scheduled"


def _computation_inconsistencies(computation: Computation, computations: Collection[int]) -> Iterator[str]:
    own = {i.id for i in computation.instructions}
    if computation.root_id not in own:
        yield f"computation {computation.name!r} has no root"
    for instruction in computation.instructions:
        if not own.issuperset(instruction.operand_ids):
            yield f"{instruction.name!r} reads an instruction that is missing"
        if not set(instruction.called_computation_ids).issubset(computations):
            yield f"{instruction.name!r} calls a computation that is missing"
        if instruction.opcode == "while" and len(instruction.called_computation_ids) != 2:
            yield f"the loop {instruction.name!r} has no body and condition"


def _buffer_inconsistencies(buffer: Message, instructions: Mapping[int, Instruction]) -> Iterator[str]:
    if buffer.defined_at.instruction_id not in instructions:
        yield f"buffer {buffer.id} is defined by an instruction that is missing"
    shape = array_at(instructions[buffer.defined_at.instruction_id].shape, tuple(buffer.defined_at.shape_index))
    if shape.element_type != TUPLE and buffer.size < shape_bytes(shape):
        yield f"buffer {buffer.id} of {buffer.size} bytes is smaller than its array"


def _allocation_inconsistencies(allocation: Message, buffers: Mapping[int, Message]) -> Iterator[str]:
    for assigned in allocation.assigned:
        if assigned.logical_buffer_id not in buffers:
            yield f"allocation {allocation.index} holds a buffer that is missing"
        if assigned.size != buffers[assigned.logical_buffer_id].size:
            yield f"buffer {assigned.logical_buffer_id} has another size where it lies"
        if assigned.offset < 0 or assigned.offset + assigned.size > allocation.size:
            yield f"allocation {allocation.index} is smaller than a buffer in it"


class _MemoryReader:
    def __init__(self, message: Message, platform: str, argument_paths: Sequence[str]):
        self.assignment = message.buffer_assignment
        self.platform = platform
        self.paths = argument_paths
        self.program = HloProgram(message.hlo_module)
        self.provenances = Provenances(self.program)
        self.host_copies = HostCopies(self.program, lambda shape: self._space(shape.layout.memory_space) is Space.HOST)
        self.end = max(0, len(self.program.kernels) - 1)
        self.readers = functools.cache(self.program.readers)
        self.written = frozenset(self.program.kernels)
        self.values: Mapping[int, ValueId] = {
            buffer.id: (buffer.defined_at.instruction_id, tuple(buffer.defined_at.shape_index))
            for buffer in self.assignment.logical_buffers
        }
        self.live_ranges, self.disorder = self._simulated_live_ranges()
        self.kernels = tuple(map(self._kernel, self.program.kernels))
        self.backward = backward_position(self.kernels)

    def memory(self) -> MemoryMap:
        allocations = tuple(map(self._allocation, self.assignment.buffer_allocations))
        numbered = tuple(self._buffers(allocations))
        placed, numbers = tuple(buffer for buffer, _ in numbered), [number for _, number in numbered]
        kept = placed if self.assignment.heap_simulator_traces else tuple(_handed_over(placed))
        frames, frame_of = stack_frames(self.program.module.stack_frame_index, [numbers[buffer.id] for buffer in kept])
        buffers = tuple(replace(buffer, id=number) for number, buffer in enumerate(kept))
        return MemoryMap(
            program=self.program.module.name,
            kernels=self.kernels,
            buffers=buffers,
            allocations=allocations,
            problems=tuple(self._problems(buffers)),
            transfers=tuple(filter(None, map(self.host_copies.of, self.program.kernels))),
            frames=frames,
            frame_of=frame_of,
        )

    def _allocation(self, allocation: Message) -> Allocation:
        return Allocation(
            index=allocation.index,
            size_bytes=allocation.size,
            use=use_of(allocation),
            space=self._space(allocation.color),
            donated=allocation.is_entry_computation_parameter and allocation.maybe_live_out,
        )

    def _space(self, color: int) -> Space:
        if color == HOST_SPACE:
            return Space.HOST
        return Space.CHIP if color and self.platform == "tpu" else Space.DEVICE

    def _kernel(self, id_: int) -> Kernel:
        instruction = self.program.instructions[id_]
        kernel = Kernel(
            name=instruction.name,
            opcode=instruction.opcode,
            count=self.program.count[id_],
            is_copy=self.host_copies.of(id_) is not None,
            by_xla=_REMATERIALISED.search(instruction.name) is not None,
            **shared_fields(self.provenances.of(id_), Kernel),
        )
        return with_cost(kernel, self.program, id_)

    def _buffers(self, allocations: Sequence[Allocation]) -> Iterator[tuple[Buffer, int]]:
        """Buffers, numbered in order, with XLA's numbers of the stack frames of their code."""
        logits = logits_elements(self.program, self.provenances)
        number = 0
        for allocation, message in zip(allocations, self.assignment.buffer_allocations, strict=True):
            for assigned in message.assigned:
                made = self._buffer(number, allocation, message, assigned, logits)
                if made is not None:
                    yield made, self._provenance(assigned).frame
                    number += 1

    def _buffer(
        self, number: int, allocation: Allocation, message: Message, assigned: Message, logits: frozenset[int]
    ) -> Buffer | None:
        value = self.values[assigned.logical_buffer_id]
        id_, index = value
        shape = array_at(self.program.instructions[id_].shape, index)
        live_range = self._live_range(assigned.logical_buffer_id, allocation)
        if allocation.use is Use.LOCAL or live_range is None:
            return None
        is_argument = allocation.use is Use.ARGUMENT
        if is_argument and self.program.instructions[id_].opcode != "parameter":
            return None  # a result that takes over an argument: the argument's own buffer says it all
        provenance = self._provenance(assigned)
        readers, is_returned = self.readers(value)
        return Buffer(
            id=number,
            size_bytes=assigned.size,
            offset_bytes=assigned.offset,
            allocation=allocation.index,
            born=live_range.born,
            dies=live_range.dies,
            dtype=dtype_of(shape),
            shape=tuple(shape.dimensions),
            layout=tuple(shape.layout.minor_to_major),
            name=self._path(message) if is_argument else self.program.instructions[id_].name,
            role=role_of(
                self.program,
                value,
                allocation=allocation,
                part=provenance.part,
                read_by=frozenset(self.provenances.of(reader).part for reader in readers),
                is_returned=is_returned,
                elements=element_count(shape),
                logits=logits,
                is_after_forward=self.program.position.get(id_, 0) >= self.backward,
            ),
            count=self.program.count.get(id_, 1),
            **shared_fields(provenance, Buffer),
        )

    def _provenance(self, assigned: Message) -> Provenance:
        value = self.values[assigned.logical_buffer_id]
        return self.provenances.inside(value[0], self.program.defining(value))

    def _path(self, allocation: Message) -> str:
        """The path of the leaf that an argument's allocation is; XLA's own name where no paths were given."""
        number = allocation.parameter_number
        if number < len(self.paths):
            return str(self.paths[number])
        parameter = self.program.entry_parameters.get(number)
        if parameter is None:
            return f"argument {number}"
        return str(self.program.instructions[parameter].metadata.op_name)

    def _live_range(self, buffer: int, allocation: Allocation) -> LiveRange | None:
        if allocation.use is not Use.TEMPORARY:
            return LiveRange(born=0, dies=self.end)
        if buffer in self.live_ranges:
            return self.live_ranges[buffer]
        id_, index = self.values[buffer]
        if id_ not in self.written or array_at(self.program.instructions[id_].shape, index).element_type == TUPLE:
            return None  # what hands memory on, and tables of addresses
        return LiveRange(born=self.program.position[id_], dies=self._last_read(buffer))

    def _simulated_live_ranges(self) -> tuple[Mapping[int, LiveRange | None], int]:
        """Live ranges in XLA's heaps, None of what is handed on in a kernel; and how many events are in disorder."""
        traces, disorder = self.assignment.heap_simulator_traces, 0
        found: dict[int, LiveRange | None] = dict.fromkeys(e.buffer_id for trace in traces for e in trace.events)
        for trace in traces:
            lived, in_disorder = live_ranges(
                trace,
                born=lambda b: self.program.position.get(self.values[b][0]) if b in self.values else None,
                is_written=lambda b: self.values[b][0] in self.written,
                last_read=self._last_read,
                end=self.end,
            )
            found.update(lived)
            disorder += in_disorder
        return found, disorder

    def _last_read(self, buffer: int) -> int:
        value = self.values[buffer]
        readers, returned = self.readers(value)
        positions = [self.program.position[r] for r in readers if r in self.program.position]
        return self.end if returned else max(positions, default=self.program.position.get(value[0], 0))

    def _problems(self, buffers: Sequence[Buffer]) -> Iterator[str]:
        if self.disorder:
            yield f"{self.disorder} of XLA's heap events do not come in the order of the schedule"
        # Arenas on the chip are not simulated over the whole program; some versions simulate host memory, and number it
        # apart.
        on_device = {a.index for a in self.assignment.buffer_allocations if self._space(a.color) is Space.DEVICE}
        arenas = on_device & {t.buffer_allocation_index for t in self.assignment.heap_simulator_traces}
        both = sum(1 for _ in _overlaps([b for b in buffers if b.allocation in arenas]))
        if both:
            yield f"{both} pairs of buffers are in the same place at the same time"


def _overlaps(buffers: Sequence[Buffer]) -> Iterator[tuple[Buffer, Buffer]]:
    """Pairs of buffers that share an address and a time; a sweep over time."""
    alive: list[Buffer] = []
    for buffer in sorted(buffers, key=lambda b: (b.born, b.id)):
        alive = [b for b in alive if b.dies >= buffer.born]
        yield from ((other, buffer) for other in alive if _share_addresses(other, buffer))
        alive.append(buffer)


def _handed_over(buffers: Sequence[Buffer]) -> Iterator[Buffer]:
    """Buffers of which each ends before another one begins at its place; of those that begin together, the largest."""
    dies = {buffer.id: buffer.dies for buffer in buffers}
    dropped: set[int] = set()
    for a, b in _overlaps(buffers):
        if a.id in dropped or b.id in dropped or dies[a.id] < b.born:
            continue
        if a.born < b.born:
            dies[a.id] = b.born - 1
        else:
            dropped.add(min(a, b, key=lambda buffer: buffer.size_bytes).id)
    return (replace(buffer, dies=dies[buffer.id]) for buffer in buffers if buffer.id not in dropped)


def _share_addresses(a: Buffer, b: Buffer) -> bool:
    return (
        a.allocation == b.allocation
        and a.offset_bytes < b.offset_bytes + b.size_bytes
        and b.offset_bytes < a.offset_bytes + a.size_bytes
    )


def reconcile(memory: MemoryMap, figures: Mapping[str, int]) -> Iterator[str]:
    """Where the sums over allocations differ from XLA's memory statistics (by our names), one sentence each."""
    sums = {
        "argument_bytes": memory.allocated_bytes(Use.ARGUMENT),
        "alias_bytes": sum(a.size_bytes for a in memory.allocations if a.donated and a.space is Space.DEVICE),
        "temp_bytes": memory.temp_bytes,
    }
    for name, found in sums.items():
        if name in figures and found != figures[name]:
            yield (
                f"{name}: allocations add up to {found} bytes ({format_bytes(found)}), "
                f"XLA's statistics say {figures[name]} ({format_bytes(figures[name])})"
            )
