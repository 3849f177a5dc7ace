"""Causes of an out-of-memory error and the cheapest remedies, as far as XLA's message proves them.

Every statement has a figure or a buffer of the message behind it. Savings are of the buffers that the message lists, at
the moment that the message describes. Savings are bounds and no promises: another moment may become the peak.

Read after `out_of_memory`.
"""

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jaxckpt._units import format_bytes
from jaxckpt.hlo.memory import Part
from jaxckpt.ir.layers import fold_layers
from jaxckpt.oom.buffers import OomBuffer
from jaxckpt.oom.message_patterns import Moment, Platform
from jaxckpt.oom.out_of_memory import OutOfMemory

_CHUNKS = 8
"""Chunks of the loss that a remedy proposes."""
_LEAST_VOCABULARY = 8192
_LEAST_SEQUENCE = 512
_LEAST_SHARE = 0.01
"""Bounds below which an axis is no vocabulary or sequence, and bytes are no cause; no benchmark fixed the values."""
_DEFAULT_FRACTION, _LARGER_FRACTION = 0.75, 0.95
"""XLA's default of XLA_PYTHON_CLIENT_MEM_FRACTION, and the fraction that a remedy proposes."""
_FLOATS = ("float", "bfloat")


class Cause(enum.StrEnum):
    """Why memory ran out."""

    NEED = enum.auto()
    """The program takes more than there would be without anything else."""
    ARGUMENTS = enum.auto()
    """Its arguments alone do, so no decision on residuals can help."""
    LIMIT = enum.auto()
    """The allocator may not take all of the device."""
    FRAGMENTATION = enum.auto()
    """Enough was free, in pieces that are too small."""
    OTHERS = enum.auto()
    """Arrays of the same process, or other processes, hold the memory."""
    KERNEL = enum.auto()
    """One kernel's scratch exceeds the memory on the chip."""
    HOST = enum.auto()
    """The host's memory ran out, not the device's."""
    UNKNOWN = enum.auto()
    """The message does not say how much there was."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A cause and the figures that show it."""

    cause: Cause
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change that would have helped."""

    title: str  # the change in a few words
    how: str  # what to do, and which facts of the message say that it helps
    saves_bytes: int | None = None  # bytes that it saves; None where the message does not tell
    is_bound_below: bool = False  # true if it saves at least so much; otherwise at most
    command: str = ""  # to paste; "" where there is none


class BufferKind(enum.StrEnum):
    """Kinds of listed buffers."""

    ARGUMENT = enum.auto()
    LOGITS = enum.auto()
    ATTENTION = enum.auto()
    STACKED = enum.auto()
    FORWARD = enum.auto()
    BACKWARD = enum.auto()
    RECOMPUTED = enum.auto()
    OTHER = enum.auto()


def classify_buffers(buffers: Iterable[OomBuffer]) -> tuple[BufferKind, ...]:
    """The kind of each buffer, by shape and origin; names decide nothing.

    Returns:
      For each buffer: an argument; logits (its last axis is the widest of all, and no layer repeats it); attention
      weights (two last axes of one length); stacked by a loop (written slice by slice inside it, for the backward);
      else the part of the step that made it.
    """
    buffers = tuple(buffers)
    width = _vocabulary(buffers)
    return tuple(_kind(buffer, width) for buffer in buffers)


def diagnoses(data: OutOfMemory) -> tuple[Diagnosis, ...]:
    """Causes of the error, as far as the message proves them; at least one entry."""
    return tuple(_diagnoses(data)) or (Diagnosis(Cause.UNKNOWN, _unknown(data)),)


def remedies(data: OutOfMemory) -> tuple[Remedy, ...]:
    """Changes that would have helped, the cheapest first."""
    causes = {diagnosis.cause for diagnosis in diagnoses(data)}
    if Cause.KERNEL in causes:
        return (
            Remedy(title="smaller blocks in that kernel", how="No decision on residuals changes a kernel's scratch."),
        )
    if Cause.HOST in causes:
        return (
            Remedy(title="less in host memory", how="Offload fewer residuals, or give the process more host memory."),
        )
    return (*_settings(data, causes), *_changes(data, causes), *_plans(data, causes))


def program_budget_bytes(data: OutOfMemory) -> int | None:
    """Bytes that the program may take: the limit without other arrays in use, or what is free; None if unknown."""
    limit = data.limit_bytes
    if limit is None or data.moment is Moment.COMPILE or data.in_use_bytes is None:
        return limit
    arguments = data.figures.argument_bytes
    if arguments is None:
        return None
    unused_bytes = max(0, limit - data.in_use_bytes)
    return min(limit, arguments + (unused_bytes if data.free_bytes is None else min(unused_bytes, data.free_bytes)))


def _diagnoses(data: OutOfMemory) -> Iterator[Diagnosis]:
    if data.space not in ("", "hbm", "host"):
        yield Diagnosis(Cause.KERNEL, f"{data.space} is memory on the chip, scratch of one kernel.")
    elif data.space == "host" or data.platform is Platform.CPU:
        yield Diagnosis(Cause.HOST, "It was memory of the host that ran out.")
    else:
        yield from _program_causes(data)
        if data.moment is Moment.RUN:
            yield from _held_by_others(data)
            yield from _fragmentation(data)
            yield from _limit_causes(data)


def _unknown(data: OutOfMemory) -> str:
    if data.requested_bytes is None or data.available_bytes is None:
        return "The message does not say how much memory there was."
    return (
        f"{format_bytes(data.requested_bytes)} were requested, and {format_bytes(data.available_bytes)} were free. The"
        " message does not say how much the program takes."
    )


def _program_causes(data: OutOfMemory) -> Iterator[Diagnosis]:
    arguments, limit, need = data.figures.argument_bytes, data.limit_bytes, data.need_bytes
    target = data.figures.remat_target_bytes
    if arguments is not None and limit is not None and arguments > limit:
        yield Diagnosis(Cause.ARGUMENTS, f"Arguments alone take {format_bytes(arguments)} of {format_bytes(limit)}.")
    elif target is not None and target < 0:
        because = f"Arguments and results alone take {format_bytes(-target)} more than XLA may use."
        yield Diagnosis(Cause.ARGUMENTS, because)
    if need is not None and limit is not None and need > limit:
        because = f"The program takes {format_bytes(need)}, and there are at most {format_bytes(limit)}."
        yield Diagnosis(Cause.NEED, because)


def _held_by_others(data: OutOfMemory) -> Iterator[Diagnosis]:
    requested, free, unused = data.requested_bytes, data.free_bytes, _unused_bytes(data)
    if data.allocator == "driver" or data.refused_bytes is not None:
        refused = f" of {format_bytes(data.refused_bytes)}" if data.refused_bytes else ""
        because = f"The driver itself refused a request{refused}: others hold the device's memory."
        yield Diagnosis(Cause.OTHERS, because)
    elif requested and free is not None and free < requested <= unused:
        because = (
            f"The allocator might have taken {format_bytes(unused)} more, but the device had only"
            f" {format_bytes(free)} left: others hold the rest."
        )
        yield Diagnosis(Cause.OTHERS, because)


def _unused_bytes(data: OutOfMemory) -> int:
    """Bytes below its limit that the allocator might have given out; 0 if unknown."""
    return 0 if data.limit_bytes is None or data.in_use_bytes is None else data.limit_bytes - data.in_use_bytes


def _fragmentation(data: OutOfMemory) -> Iterator[Diagnosis]:
    requested, free, largest = data.requested_bytes, data.available_bytes, data.largest_free_bytes
    if requested and free is not None and free >= requested:
        known = "no piece was long enough" if largest is None else f"the longest piece is {format_bytes(largest)}"
        because = f"{format_bytes(free)} were free for a request of {format_bytes(requested)}, but {known}."
        yield Diagnosis(Cause.FRAGMENTATION, because)


def _limit_causes(data: OutOfMemory) -> Iterator[Diagnosis]:
    """Causes in the allocator: its limit, and other bytes that it had given out."""
    requested, limit, used, need = data.requested_bytes, data.limit_bytes, data.in_use_bytes, data.need_bytes
    if requested and limit and requested > limit:
        because = f"One request of {format_bytes(requested)} exceeds all of {format_bytes(limit)} that it may give out."
        yield Diagnosis(Cause.LIMIT, because)
    arguments = data.figures.argument_bytes
    if limit and used is not None and need is not None and arguments is not None and need <= limit:
        others = used - arguments
        if others > _LEAST_SHARE * limit:
            because = (
                f"The program takes {format_bytes(need)} of {format_bytes(limit)}, but {format_bytes(others)} beside"
                " its arguments were in use: other arrays and programs of this process."
            )
            yield Diagnosis(Cause.OTHERS, because)


def _settings(data: OutOfMemory, causes: set[Cause]) -> Iterator[Remedy]:
    """Remedies that change no code."""
    if Cause.OTHERS in causes:
        yield Remedy(
            title="free what others hold",
            how="Delete arrays that are not needed (jax.live_arrays() lists them), restart a notebook whose last error"
            " still holds some, and look for other processes on the device.",
        )
    if Cause.FRAGMENTATION in causes and data.platform is Platform.GPU:
        yield Remedy(
            title="another allocator",
            how="Enough was free in pieces: cuda_async joins free pages.",
            command="XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async",
        )
    elif Cause.FRAGMENTATION in causes:
        yield Remedy(title="a fresh process", how="Enough was free in pieces; a new process starts with one piece.")
    yield from _fraction(data)


def _fraction(data: OutOfMemory) -> Iterator[Remedy]:
    limit, short = data.limit_bytes, data.shortfall_bytes
    is_gpu_run = data.platform is Platform.GPU and data.moment is Moment.RUN
    is_below_limit = data.requested_bytes is not None and data.requested_bytes <= _unused_bytes(data)
    if not is_gpu_run or limit is None or data.allocator == "driver" or is_below_limit:
        return
    if data.device_bytes is None:
        device = limit / _DEFAULT_FRACTION
        known = f"If the limit is the default {_DEFAULT_FRACTION:.0%} of the device, a"
    else:
        device, known = float(data.device_bytes), f"The limit is {limit / data.device_bytes:.0%} of the device. A"
    gain = int(device * _LARGER_FRACTION) - limit
    if short is not None and 0 < short <= gain and (data.need_bytes or 0) <= limit + gain:
        yield Remedy(
            title="a larger share of the device",
            how=f"{known} share of {_LARGER_FRACTION:.0%} adds {format_bytes(gain)}; the request was short by"
            f" {format_bytes(short)}.",
            saves_bytes=gain,
            command=f"XLA_PYTHON_CLIENT_MEM_FRACTION={_LARGER_FRACTION}",
        )


def _changes(data: OutOfMemory, causes: set[Cause]) -> Iterator[Remedy]:
    """Remedies that change the step, by their cost: nothing, padding, a fused kernel, a few products."""
    yield from _donation(data)
    if Cause.ARGUMENTS in causes:
        yield Remedy(
            title="smaller arguments",
            how="No decision on residuals can help: shard parameters and optimiser state over more devices, keep them"
            " in fewer bytes, or keep optimiser state on the host.",
        )
    yield from _padding(data)
    yield from _wide_values(data)
    yield from _stacked(_of_kinds(data, BufferKind.STACKED))


def _of_kinds(data: OutOfMemory, *kinds: BufferKind) -> list[OomBuffer]:
    by_kind = zip(data.buffers, classify_buffers(data.buffers), strict=True)
    return [buffer for buffer, kind in by_kind if kind in kinds]


def _padding(data: OutOfMemory) -> Iterator[Remedy]:
    padding = sum(buffer.padding_bytes for buffer in data.buffers)
    if padding > _LEAST_SHARE * (data.requested_bytes or 0):
        worst = max(data.buffers, key=lambda buffer: buffer.padding_bytes)
        yield Remedy(
            title="axes that fill tiles",
            how=f"TPUs pad the last two axes; most of it is in {buffer_text(worst)}. Move a long axis last, or merge"
            " short ones.",
            saves_bytes=padding,
        )


def _donation(data: OutOfMemory) -> Iterator[Remedy]:
    figures = data.figures
    arguments, outputs, shared = figures.argument_bytes, figures.output_bytes, _shared(data)
    if not arguments or not outputs or shared is None:
        return
    missing = min(arguments, outputs) - shared
    if missing > 0.05 * (data.need_bytes or arguments):
        yield Remedy(
            title="donate arguments",
            how=f"Results take {format_bytes(outputs)} and only {format_bytes(shared)} of it over from arguments:"
            " jax.jit(step, donate_argnums=...) for those that the step returns changed.",
            saves_bytes=missing,
        )


def _shared(data: OutOfMemory) -> int | None:
    """Bytes that results take over from arguments: as given, or the bytes that the sum of XLA's table counts once."""
    figures = data.figures
    if figures.alias_bytes is not None:
        return figures.alias_bytes
    parts = (figures.argument_bytes, figures.output_bytes, figures.temp_bytes, figures.constant_bytes)
    if figures.total_bytes is None or any(part is None for part in parts):
        return None
    return max(0, sum(part for part in parts if part is not None) - figures.total_bytes)


def _wide_values(data: OutOfMemory) -> Iterator[Remedy]:
    """Remedies for attention weights and logits, which are found by their shape."""
    fused = "A fused kernel never has them (jax.nn.dot_product_attention with implementation='cudnn', splash attention"
    chunked = f"A loss over the sequence in {_CHUNKS} chunks, each recomputed in the backward, has one chunk at a time."
    for kind, title, values, advice, saved_chunks in (
        (BufferKind.ATTENTION, "attention that keeps no weights", "Attention weights", f"{fused} on TPU).", _CHUNKS),
        (BufferKind.LOGITS, "a chunked loss", "Logits", chunked, _CHUNKS - 1),
    ):
        if buffers := _of_kinds(data, kind):
            yield Remedy(
                title=title,
                how=f"{values} by their shape: {_count(buffers)} such as {buffer_text(buffers[0])}. {advice}",
                saves_bytes=_sum(buffers) * saved_chunks // _CHUNKS,
                is_bound_below=data.platform is Platform.GPU,  # a TPU lists the largest, whenever they are alive
            )


def _stacked(buffers: list[OomBuffer]) -> Iterator[Remedy]:
    """Recomputing the body keeps the carry. The message does not name the carry: the largest stack is left out."""
    if len(buffers) > 1:
        layers = min(buffer.shape[0] for buffer in buffers if buffer.shape)
        others = _sum(buffers) - max(buffer.size_bytes or 0 for buffer in buffers)
        yield Remedy(
            title="recompute inside the scan",
            how=f"{_count(buffers)} such as {buffer_text(buffers[0])} hold one slice for each of {layers} iterations of"
            " a loop: jax.checkpoint around the body keeps the carry alone.",
            saves_bytes=others - others // layers,
            is_bound_below=True,
        )


def _plans(data: OutOfMemory, causes: set[Cause]) -> Iterator[Remedy]:
    if Cause.ARGUMENTS in causes:
        return
    budget = program_budget_bytes(data)
    held = _of_kinds(data, BufferKind.FORWARD, BufferKind.STACKED, BufferKind.ATTENTION)
    forward = f"{format_bytes(_sum(held))} of the listed buffers were made by the forward pass. " if held else ""
    if budget and (data.need_bytes is None or budget < data.need_bytes):
        yield Remedy(
            title="a plan for this budget",
            how=f"{forward}jaxckpt decides which residuals to recompute so that the compiler's own figure fits.",
            command=f"jaxckpt plan MODULE:FUNCTION --target {data.target or 'TARGET'} --budget {_typed(budget)}",
        )


def _typed(size_bytes: int) -> str:
    """A budget as one types it, rounded down."""
    hundredths = size_bytes * 100 // 2**30
    if hundredths >= 100:
        return f"{hundredths // 100}.{hundredths % 100:02}GiB"
    return f"{size_bytes // 2**20}MiB" if size_bytes >= 2**20 else f"{size_bytes // 2**10}KiB"


_KIND_OF_PART = {
    Part.FORWARD: BufferKind.FORWARD,
    Part.BACKWARD: BufferKind.BACKWARD,
    Part.RECOMPUTE: BufferKind.RECOMPUTED,
}


def _kind(buffer: OomBuffer, vocabulary: int | None) -> BufferKind:
    if buffer.is_argument:
        return BufferKind.ARGUMENT
    if vocabulary is not None and _width(buffer) == vocabulary and not _in_loop(buffer):
        return BufferKind.LOGITS
    if _is_attention(buffer):
        return BufferKind.ATTENTION
    if _is_stacked(buffer):
        return BufferKind.STACKED
    return _KIND_OF_PART.get(buffer.part, BufferKind.OTHER) if buffer.part else BufferKind.OTHER


def _is_attention(buffer: OomBuffer) -> bool:
    shape = buffer.shape or ()
    is_square = len(shape) >= 3 and shape[-1] == shape[-2] >= _LEAST_SEQUENCE
    return is_square and buffer.dtype.startswith(_FLOATS) and buffer.part is not None


def _is_stacked(buffer: OomBuffer) -> bool:
    """True if a loop of the forward pass writes the buffer slice by slice."""
    is_written = _in_loop(buffer) and buffer.op == "dynamic_update_slice"
    return is_written and buffer.part is Part.FORWARD and len(buffer.shape or ()) > 1


def _vocabulary(buffers: tuple[OomBuffer, ...]) -> int | None:
    """The last axis of the logits: the widest one, where no layer and no loop has it and no other axis is as long."""
    results = [buffer for buffer in buffers if not buffer.is_argument and buffer.dtype.startswith(_FLOATS)]
    widest = max(map(_width, results), default=0)
    with_it = [buffer for buffer in results if buffer.shape and buffer.shape[-1] == widest]
    if widest < _LEAST_VOCABULARY or _is_inner_axis(results, widest):
        return None
    return widest if _is_made_once(with_it) else None


def _is_inner_axis(buffers: list[OomBuffer], length: int) -> bool:
    """True if an axis of this length, but not the last, is in an array of three axes or more."""
    shapes = [buffer.shape or () for buffer in buffers]
    return any(len(shape) > 2 and length in shape[:-1] for shape in shapes)


def _is_made_once(buffers: list[OomBuffer]) -> bool:
    """True if the forward or the backward makes such buffers, and neither several layers nor a loop do."""
    folded = fold_layers(buffers, scope=lambda buffer: buffer.scope, alike=lambda buffer: buffer.shape)
    is_repeated = any(group.layers for group in folded) or any(map(_in_loop, buffers))
    return not is_repeated and any(buffer.part in (Part.FORWARD, Part.BACKWARD) for buffer in buffers)


def _width(buffer: OomBuffer) -> int:
    """The last axis of an array of floats with at least two; 0 of anything else."""
    is_wide = buffer.shape is not None and len(buffer.shape) >= 2 and buffer.dtype.startswith(_FLOATS)
    return buffer.shape[-1] if buffer.shape and is_wide else 0


def _in_loop(buffer: OomBuffer) -> bool:
    return "while/body" in buffer.op_name


def _sum(buffers: Iterable[OomBuffer]) -> int:
    return sum(buffer.size_bytes or 0 for buffer in buffers)


def _count(buffers: list[OomBuffer]) -> str:
    return f"{len(buffers)} listed {'buffers' if len(buffers) > 1 else 'buffer'} ({format_bytes(_sum(buffers))})"


def buffer_text(buffer: OomBuffer) -> str:
    """Dtype, shape and place of a buffer, as far as they are known.

    Example:
      >>> buffer_text(OomBuffer(dtype="float32", shape=(8, 4), scope="GPT/head", op="dot_general"))
      'float32[8,4] of GPT/head/dot_general'
    """
    shape = "" if buffer.shape is None else f"[{','.join(map(str, buffer.shape))}]"
    place = "/".join(filter(None, (buffer.scope, buffer.op)))
    return " of ".join(filter(None, (f"{buffer.dtype}{shape}", place))) or buffer.label or "a buffer"
