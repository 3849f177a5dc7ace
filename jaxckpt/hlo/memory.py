"""Where the bytes of a compiled program are, as plain data: kernels in order, buffers with addresses and live ranges.

A `MemoryMap` is what XLA's buffer assignment says, with every buffer told apart by the part of the model that made it.
Time is the position of a kernel in the schedule; a buffer lives from `born` to `dies`, both included, and takes
`size_bytes` from `offset_bytes` on in its allocation. It knows neither how it was read (`read`) nor how it is shown.

In files kernels, buffers, allocations and transfers are tables of columns, a fifth of the size of one table each.
Reading checks every type (`jaxckpt._records`), and that positions and allocations exist; a memory map that comes back
is equal.
"""

import enum
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Any, TypeVar

from jaxckpt._errors import HloError
from jaxckpt._records import COLUMNS, RecordError, read_record, table_from_record

_Scoped = TypeVar("_Scoped", "Kernel", "Buffer")


class Part(enum.StrEnum):
    """The part of the step that an instruction belongs to."""

    FORWARD = enum.auto()
    BACKWARD = enum.auto()
    RECOMPUTE = enum.auto()
    """Forward work that is recomputed in the backward pass."""
    UPDATE = enum.auto()
    """Work on finished gradients: clipping, the optimiser, new parameters."""
    UNKNOWN = enum.auto()
    """XLA says of nothing around it where it came from."""


AFTER_FORWARD = frozenset({Part.BACKWARD, Part.RECOMPUTE, Part.UPDATE})
"""The parts of the step that run when the forward pass is done."""


class Role(enum.StrEnum):
    """Roles of a buffer."""

    PARAMETER = enum.auto()
    """An argument that the step returns changed, and that the forward pass reads."""
    OPTIMIZER_STATE = enum.auto()
    """An argument that the step returns changed, and that only the update reads."""
    INPUT = enum.auto()
    """Any other argument: a batch, a key, a learning rate."""
    CONSTANT = enum.auto()
    OUTPUT = enum.auto()
    """A result that takes over no argument."""
    RESIDUAL = enum.auto()
    """Made by the forward pass and read after it."""
    ACTIVATION = enum.auto()
    """Made by the forward pass, or by doing it again, and read there only."""
    LOGITS = enum.auto()
    """As many elements as the last product of the forward pass, if it widens its operand at least fourfold: logits,
    their gradient."""
    COTANGENT = enum.auto()
    """Made by the backward pass and read there only: the gradient of an activation."""
    GRADIENT = enum.auto()
    """Made by the backward pass and read by the update or returned: the gradient of a parameter."""
    UPDATE = enum.auto()
    """Made by the update."""
    COLLECTIVE = enum.auto()
    """Sent to or received from other devices."""
    HOST_COPY = enum.auto()
    """On its way to host memory or back, or there."""
    WORKSPACE = enum.auto()
    """Scratch of a library's kernel."""
    OTHER = enum.auto()


class Use(enum.StrEnum):
    """Uses of an allocation, in the terms of XLA's memory statistics."""

    ARGUMENT = enum.auto()
    OUTPUT = enum.auto()
    TEMPORARY = enum.auto()
    CONSTANT = enum.auto()
    LOCAL = enum.auto()
    """Inside kernels: counted in no statistic."""


class Space(enum.StrEnum):
    """Where an allocation lies."""

    DEVICE = enum.auto()
    HOST = enum.auto()
    CHIP = enum.auto()
    """Memory on a TPU's chip (VMEM, SMEM), which is not the device's main memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One scheduled instruction, by XLA's name ("loop_add_fusion.3") and opcode ("fusion", "custom-call", "while").

    Attributes:
      op: JAX's primitive that its result came from ("dot_general"), "" where XLA does not say.
      scope: The path of names of the model around it; "" at the top.
      count: How often it runs in one step: trip counts of the loops around it, multiplied, and the share of a branch.
      flops: Arithmetic of one run, a multiply-add being two.
      matmul_flops: The part of it that matrix units do.
      matmul_dtype: Their operands' dtype, that of the first of several; "" where there is none.
      traffic_bytes: Operands and results of one run; of a collective what the device gets from others.
      is_priced: True if all of its arithmetic could be read; `flops` is too low where not.
      is_copy: True if it only copies between device and host while other kernels run: see `Transfer`.
      by_xla: True if XLA's own rematerialisation pass added it.
      source: "file.py:line" of the user's code, "" where unknown.
    """

    name: str
    opcode: str
    op: str = ""
    scope: str = ""
    part: Part = Part.UNKNOWN
    count: float = 1
    flops: int = 0
    matmul_flops: int = 0
    matmul_dtype: str = ""
    traffic_bytes: int = 0
    is_priced: bool = True
    is_copy: bool = False
    by_xla: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """Some bytes for some time; `op`, `scope`, `part` and `source` are as in `Kernel`.

    Attributes:
      id: Its position in `MemoryMap.buffers`.
      size_bytes: With padding.
      offset_bytes: From the start of its allocation.
      allocation: Index of its `Allocation`.
      born: Position of the kernel that writes it; 0 for arguments and constants.
      dies: Position of the last kernel that reads it; the last one for what the step returns.
      dtype: numpy's name ("bfloat16").
      shape: On one device.
      layout: Minor to major, as XLA has it ((1, 0) is row-major).
      name: Of the instruction that defines it; for arguments the path of the leaf (`[0]['params']['w']`).
      count: How often it is written in one step.
    """

    id: int
    size_bytes: int
    offset_bytes: int
    allocation: int
    born: int
    dies: int
    dtype: str
    shape: tuple[int, ...]
    layout: tuple[int, ...] = ()
    name: str = ""
    op: str = ""
    scope: str = ""
    part: Part = Part.UNKNOWN
    role: Role = Role.OTHER
    count: float = 1
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One frame of a Python stack.

    Attributes:
      function: Its name, "" where unknown.
      source: "file.py:line".
      caller: Position of the calling frame in `MemoryMap.frames`, before its own; -1 where there is none.
    """

    function: str
    source: str
    caller: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A contiguous piece of memory that XLA asks for, by XLA's number; donated if a result takes over an argument."""

    index: int
    size_bytes: int
    use: Use
    space: Space = Space.DEVICE
    donated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One copy between device and host, which overlaps kernels.

    Attributes:
      starts: Position of the kernel that starts it.
      ends: Position of the kernel that waits for it; one behind the last where only the end of the program does.
      count: How often in one step: in the body of a loop it starts and ends in every iteration.
    """

    size_bytes: int
    to_host: bool
    starts: int
    ends: int
    count: float = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeMemory:
    """Memory and work of one scope in one step, all scopes below it included; the scope "" is the full step.

    Attributes:
      held_bytes: Its residuals: bytes of its forward pass alive where the backward begins.
      peak_bytes: Its bytes among the temporaries alive at the peak.
      largest_bytes: The most temporaries of it that are alive at one time, wherever that is.
      recomputed_kernels: Of its scheduled kernels, how many recompute forward work.
    """

    scope: str
    held_bytes: int
    peak_bytes: int
    largest_bytes: int
    flops: int
    recomputed_flops: int
    traffic_bytes: int
    kernels: int
    recomputed_kernels: int


@dataclass(frozen=True, kw_only=True)
class MemoryMap:
    """A compiled program's memory over time.

    Attributes:
      program: XLA's name of the module.
      kernels: In the order in which they are scheduled; bodies of loops stand where the loop is.
      problems: Where the sums do not reconcile with XLA's figures; empty when all is well.
      transfers: Copies between device and host, in the order in which they are started.
      frames: Of the Python stacks of all buffers; empty where the program has none, and in files of older versions.
      frame_of: For each buffer the position of its innermost frame, -1 where unknown; see `stack`.
      spanning: Names of collectives between hosts, each with the number of devices of a group in one host.
    """

    program: str
    kernels: Annotated[tuple[Kernel, ...], COLUMNS]
    buffers: Annotated[tuple[Buffer, ...], COLUMNS]
    allocations: Annotated[tuple[Allocation, ...], COLUMNS]
    problems: tuple[str, ...] = ()
    transfers: Annotated[tuple[Transfer, ...], COLUMNS] = ()
    frames: Annotated[tuple[Frame, ...], COLUMNS] = ()
    frame_of: tuple[int, ...] = ()
    spanning: tuple[tuple[str, int], ...] = ()

    @cached_property
    def by_index(self) -> dict[int, Allocation]:
        """Allocations by XLA's number."""
        return {allocation.index: allocation for allocation in self.allocations}

    @cached_property
    def temporaries(self) -> tuple[Buffer, ...]:
        """Buffers of device memory that are neither arguments nor results nor constants."""
        return tuple(b for b in self.buffers if _is_temporary(self.by_index[b.allocation]))

    def allocated_bytes(self, use: Use, space: Space = Space.DEVICE) -> int:
        """Bytes that XLA allocates for one use in one memory."""
        return sum(a.size_bytes for a in self.allocations if a.use is use and a.space is space)

    @cached_property
    def temp_bytes(self) -> int:
        """Bytes that XLA allocates for temporaries in device memory."""
        return self.allocated_bytes(Use.TEMPORARY)

    @cached_property
    def live_bytes(self) -> tuple[int, ...]:
        """Bytes of temporaries that are alive while each kernel runs."""
        return _live_bytes(self.temporaries, len(self.kernels))

    @cached_property
    def peak_bytes(self) -> int:
        """The most temporaries that are alive at once; at most `temp_bytes`."""
        return max(self.live_bytes, default=0)

    @cached_property
    def peak(self) -> int:
        """The position of the first kernel at which `peak_bytes` are alive."""
        return self.live_bytes.index(self.peak_bytes) if self.live_bytes else 0

    @cached_property
    def most_host_bytes(self) -> int:
        """The most bytes that are in host memory at once, arguments and results left out; 0 where none ever are."""
        held = [b for b in self.buffers if _is_temporary(self.by_index[b.allocation], Space.HOST)]
        return max(_live_bytes(held, len(self.kernels)), default=0)

    @cached_property
    def backward(self) -> int:
        """The position at which the backward pass begins; see `backward_position`."""
        return backward_position(self.kernels)

    @property
    def rematerialised(self) -> tuple[Kernel, ...]:
        """The kernels that XLA's own rematerialisation pass added, in order."""
        return tuple(kernel for kernel in self.kernels if kernel.by_xla)

    @property
    def fragmentation(self) -> float:
        """Bytes allocated for temporaries over the most alive at once; 1.0 is none."""
        return self.temp_bytes / self.peak_bytes if self.peak_bytes else 1.0

    def alive_at(self, position: int) -> tuple[Buffer, ...]:
        """Temporaries alive while a kernel runs, largest first."""
        alive = (b for b in self.temporaries if b.born <= position <= b.dies)
        return tuple(sorted(alive, key=lambda b: (-b.size_bytes, b.id)))

    def innermost_frame(self, buffer: Buffer) -> int:
        """The position in `frames` of the innermost frame of a buffer's stack; -1 where unknown."""
        return self.frame_of[buffer.id] if buffer.id < len(self.frame_of) else -1

    def stack(self, buffer: Buffer) -> tuple[Frame, ...]:
        """The Python stack of the code that a buffer came from, innermost frame first; empty where unknown."""
        at, stack = self.innermost_frame(buffer), list[Frame]()
        while at >= 0:
            stack.append(self.frames[at])
            at = self.frames[at].caller
        return tuple(stack)

    def held(self) -> tuple[Buffer, ...]:
        """Temporaries of the forward pass that are alive where the backward begins, largest first."""
        return tuple(b for b in self.alive_at(self.backward) if b.born < self.backward)

    def scopes(self, depth: int | None = None) -> tuple[ScopeMemory, ...]:
        """Memory and work of every scope down to a depth, in the order of first use; the full step first."""
        kernels, buffers = _by_scope(self.kernels, depth), _by_scope(self.temporaries, depth)
        held, at_peak = _by_scope(self.held(), depth), _by_scope(self.alive_at(self.peak), depth)
        return tuple(
            _scope_memory(scope, kernels[scope], buffers[scope], held=held[scope], at_peak=at_peak[scope])
            for scope in dict.fromkeys((*kernels, *buffers))
        )


def _by_scope(items: Sequence[_Scoped], depth: int | None) -> dict[str, list[_Scoped]]:
    """For each scope down to a depth what is below it, in the order of first use; the full step first."""
    below: defaultdict[str, list[_Scoped]] = defaultdict(list, {"": list(items)})
    for item in items:
        for scope in _prefixes(item.scope, depth):
            below[scope].append(item)
    return below


def _scope_memory(
    scope: str,
    kernels: Sequence[Kernel],
    buffers: Sequence[Buffer],
    *,
    held: Sequence[Buffer],
    at_peak: Sequence[Buffer],
) -> ScopeMemory:
    recomputed = [k for k in kernels if k.part is Part.RECOMPUTE]
    return ScopeMemory(
        scope=scope,
        held_bytes=sum(b.size_bytes for b in held),
        peak_bytes=sum(b.size_bytes for b in at_peak),
        largest_bytes=_largest_bytes(buffers),
        flops=_step_flops(kernels),
        recomputed_flops=_step_flops(recomputed),
        traffic_bytes=round(sum(k.traffic_bytes * k.count for k in kernels)),
        kernels=len(kernels),
        recomputed_kernels=len(recomputed),
    )


def _largest_bytes(buffers: Iterable[Buffer]) -> int:
    """The largest number of bytes of these buffers that are alive at once."""
    change_bytes = _changes(buffers)
    return max(accumulate(change_bytes[at] for at in sorted(change_bytes)), default=0)


def _step_flops(kernels: Sequence[Kernel]) -> int:
    return round(sum(k.flops * k.count for k in kernels))


def backward_position(kernels: Sequence[Kernel]) -> int:
    """The position at which the backward pass begins; the number of kernels where there is none.

    The first kernel of it that has the most traffic of the forward before it and of the backward behind it. Constants
    of the backward, such as the ones that the loss is multiplied with, are often written much earlier; operands that
    XLA computes of forward values for products of the backward are written much later.
    """
    after_forward = (Part.BACKWARD, Part.RECOMPUTE)
    position, most_bytes, ahead_bytes = len(kernels), -math.inf, 0.0
    for at, kernel in enumerate(kernels):
        traffic_bytes = kernel.traffic_bytes * kernel.count
        if kernel.part is Part.FORWARD:
            ahead_bytes += traffic_bytes
        elif kernel.part in after_forward:
            if ahead_bytes > most_bytes:
                position, most_bytes = at, ahead_bytes
            ahead_bytes -= traffic_bytes
    return position


def _prefixes(path: str, depth: int | None) -> Iterator[str]:
    names = path.split("/") if path else []
    for end in range(1, len(names[:depth]) + 1):
        yield "/".join(names[:end])


def _is_temporary(allocation: Allocation, space: Space = Space.DEVICE) -> bool:
    return allocation.use is Use.TEMPORARY and allocation.space is space


def _live_bytes(buffers: Iterable[Buffer], length: int) -> tuple[int, ...]:
    change_bytes = _changes(buffers)
    return tuple(accumulate(change_bytes[at] for at in range(length)))


def _changes(buffers: Iterable[Buffer]) -> Counter[int]:
    """For each position by how many bytes more are alive there than at the position before."""
    change_bytes = Counter[int]()
    for buffer in buffers:
        change_bytes[buffer.born] += buffer.size_bytes
        change_bytes[buffer.dies + 1] -= buffer.size_bytes
    return change_bytes


def plain_from_memory(memory: MemoryMap) -> dict[str, Any]:
    """A memory map as plain data."""
    return table_from_record(memory)


def memory_from_plain(plain: Mapping[str, Any]) -> MemoryMap:
    """Reads what `plain_from_memory` wrote; an `HloError` names what is missing, mistyped or points nowhere."""
    try:
        memory = read_record(MemoryMap, plain)
        if problems := tuple(_problems(memory)):
            raise RecordError(problems)
    except RecordError as error:
        raise HloError(
            "a memory map cannot be read.",
            got=str(error),
            needed="a memory map as footprint.save writes it",
            advice="make the footprint again, or read it with the version of jaxckpt that wrote it",
        ) from error
    return memory


def _problems(memory: MemoryMap) -> Iterator[str]:
    """Positions, numbers and allocations that do not exist, a sentence each."""
    if [b.id for b in memory.buffers] != list(range(len(memory.buffers))):
        yield "buffers that are not numbered in order"
    if any(not -1 <= frame.caller < at for at, frame in enumerate(memory.frames)):
        yield "a frame that is called by none before it"
    if memory.frame_of and len(memory.frame_of) != len(memory.buffers):
        yield f"{len(memory.frame_of)} stacks of {len(memory.buffers)} buffers"
    if any(not -1 <= at < len(memory.frames) for at in memory.frame_of):
        yield "a stack whose frame does not exist"
    last = max(0, len(memory.kernels) - 1)
    if any(not 0 <= t.starts <= min(t.ends, last) or t.ends > last + 1 for t in memory.transfers):
        yield "copies that end before they start, or behind the last kernel"
    for buffer in memory.buffers:
        yield from _buffer_problems(buffer, memory.by_index.get(buffer.allocation), last)


def _buffer_problems(buffer: Buffer, allocation: Allocation | None, last: int) -> Iterator[str]:
    if not 0 <= buffer.born <= buffer.dies <= last:
        yield f"buffer {buffer.id} that lives from {buffer.born} to {buffer.dies} of {last}"
    if allocation is None:
        yield f"buffer {buffer.id} in allocation {buffer.allocation}, which does not exist"
    elif not 0 <= buffer.offset_bytes <= allocation.size_bytes - buffer.size_bytes:
        yield f"buffer {buffer.id} that does not lie in its allocation"
