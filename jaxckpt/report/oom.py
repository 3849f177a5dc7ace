"""Reports of why memory does not suffice: a message that memory ran out, and the floor, the least that a plan takes.

Read after `rows`.
"""

from collections import Counter
from collections.abc import Iterator

from jaxckpt._units import format_bytes
from jaxckpt.hlo import Buffer
from jaxckpt.ir.layers import Layers
from jaxckpt.oom.buffers import OomBuffer
from jaxckpt.oom.out_of_memory import OutOfMemory
from jaxckpt.oom.remedies import BufferKind, Remedy, classify_buffers, diagnoses, remedies
from jaxckpt.planner.floor import DECIDED, Floor, Holder, Share
from jaxckpt.report.rows import array_text, layer_table, short_source
from jaxckpt.report.tree import Element, Section, Table, Text, columns

_UNKNOWN = "not said"


def oom_report(data: OutOfMemory) -> Section:
    """Report of an out-of-memory message: cause, buffers with equal layers folded, remedies from the cheapest on."""
    sums = Table(columns=columns("", ">"), rows=tuple(_sum_rows(data)))
    shown = tuple((str(diagnosis.cause), diagnosis.because) for diagnosis in diagnoses(data))
    causes = Table(title="Why", columns=columns("cause", "what shows it"), rows=shown)
    parts: list[Element] = [Text(text=data.message), sums, causes]
    if data.buffers:
        parts.append(_buffers(data))
    helping = remedies(data)
    if helping:
        parts.append(_remedies(helping))
    parts += [Text(text=note) for note in _notes(data)]
    return Section(title=_title(data), parts=tuple(parts))


def _title(data: OutOfMemory) -> str:
    where = {"gpu": "on a GPU", "tpu": "on a TPU", "cpu": "on the host"}.get(data.platform or "", "")
    when = {"compile": "while compiling", "run": "while running"}.get(data.moment or "", "")
    what = f"{data.space} of " if data.space not in ("", "hbm", "host") else ""
    program = f"{what}{data.program}" if data.program else (what and f"{data.space}")
    return " ".join(filter(None, ("Out of memory", program and f"({program})", where, when)))


def _sum_rows(data: OutOfMemory) -> Iterator[tuple[str, str]]:
    yield "requested", _size(data.requested_bytes)
    yield "available", _size(data.available_bytes)
    short = data.shortfall_bytes
    if short is not None:
        yield "short by", format_bytes(short) if short > 0 else "nothing in total"
    figures = data.figures
    for words, size in (
        ("limit", data.limit_bytes),
        ("in use before", data.in_use_bytes),
        ("longest free piece", data.largest_free_bytes),
        ("memory of the device", data.device_bytes),
        ("the program in all", figures.total_bytes),
        ("  arguments", figures.argument_bytes),
        ("  results", figures.output_bytes),
        ("    in memory of arguments", figures.alias_bytes),
        ("  temporaries", figures.temp_bytes),
        ("    without padding", figures.unpadded_bytes),
        ("    holes", figures.fragmentation_bytes),
        ("XLA's rematerialisation aimed at", figures.remat_target_bytes),
        ("  and reached", figures.remat_reached_bytes),
    ):
        if size is not None:
            yield words, format_bytes(size)


def _size(size: int | None) -> str:
    return _UNKNOWN if size is None else format_bytes(size)


def _buffers(data: OutOfMemory) -> Table:
    def alike(pair: tuple[OomBuffer, BufferKind]) -> tuple[object, ...]:
        buffer, kind = pair
        return buffer.dtype, buffer.shape, buffer.size_bytes, buffer.op or buffer.label, buffer.part, kind

    unknown = sum(buffer.size_bytes is None for buffer in data.buffers)
    return layer_table(
        zip(data.buffers, classify_buffers(data.buffers), strict=True),
        ("what", "value", ">each", ">all", "source"),
        _buffer_cells,
        scope=lambda pair: pair[0].scope,
        alike=alike,
        title="Buffers in the message",
        notes=(f"{unknown} more whose size cannot be read count as nothing here.",) if unknown else (),
    )


def _buffer_cells(group: Layers[tuple[OomBuffer, BufferKind]]) -> tuple[int | str, ...]:
    first, kind = group.items[0]
    total_bytes = sum(buffer.size_bytes or 0 for buffer, _ in group.items)
    count = f"{len(group.items)} x " if len(group.items) > max(1, len(group.layers)) else ""
    return (
        total_bytes,
        _KINDS.get(kind, str(kind)),
        f"{count}{_value(first)}",
        _size(first.size_bytes),
        format_bytes(total_bytes),
        short_source(first.source),
    )


_KINDS = {
    BufferKind.STACKED: "stacked by a loop",
    BufferKind.ATTENTION: "attention weights",
    BufferKind.FORWARD: "forward value",
    BufferKind.BACKWARD: "backward",
    BufferKind.OTHER: "",
}


def _value(buffer: OomBuffer) -> str:
    return array_text(buffer.dtype, buffer.shape, buffer.op or buffer.label.split(" ")[0])


def _remedies(helping: tuple[Remedy, ...]) -> Table:
    return Table(
        title="What would have helped, the cheapest first",
        columns=columns("what", ">saves", "how"),
        rows=tuple((remedy.title, _saves(remedy), _how(remedy)) for remedy in helping),
        notes=("Savings are of what the message lists; another moment of the program may then be the worst one.",),
    )


def _saves(remedy: Remedy) -> str:
    if remedy.saves_bytes is None:
        return ""
    return f"{'at least' if remedy.is_bound_below else 'up to'} {format_bytes(remedy.saves_bytes)}"


def _how(remedy: Remedy) -> str:
    """A remedy in words, and the command that carries it out."""
    return f"{remedy.how}\n{remedy.command}" if remedy.command else remedy.how


def _notes(data: OutOfMemory) -> Iterator[str]:
    if data.unread:
        yield f"Could not be read: {'; '.join(data.unread)}."
    if data.repeats:
        yield f"The same error is said {data.repeats + 1} times."
    if data.others:
        yield f"The text holds {data.others} more errors of this kind; this is the first."


### The floor

_HOLDERS = {
    Holder.ARGUMENTS: "arguments",
    Holder.RESULTS: "results that take over no argument",
    Holder.PROGRAM: "the program and its constants",
    Holder.RESIDUALS: "saved from forward to backward",
    Holder.RECOMPUTED: "forward values of the part at work",
    Holder.LOGITS: "logits, and what is as wide",
    Holder.SINGLE_OP: "around one op",
    Holder.COTANGENTS: "gradients of activations",
    Holder.GRADIENTS: "gradients of parameters",
    Holder.UPDATE: "the update",
    Holder.WORKSPACE: "scratch of kernels",
    Holder.TRANSFERS: "on the way to other devices or the host",
    Holder.OTHER: "other temporaries",
    Holder.FRAGMENTATION: "not in use at the peak",
}


def floor_report(floor: Floor) -> Section:
    """The shares of the smallest total, the largest buffers of each, and remedies, what saves most first."""
    shares = Table(
        title="What it is for",
        columns=columns("what", ">bytes", ">share", "decided by", "largest"),
        rows=tuple(_share_row(floor, share) for share in floor.shares),
    )
    parts: list[Element] = [Text(text=_summary(floor)), shares]
    if floor.remedies:
        parts.append(_lowering(floor.remedies))
    of = f" of {floor.step}" if floor.step else ""
    where = f" on {floor.footprint.target}" if floor.footprint.target else ""
    title = f"The least that a plan{of} takes{where}: {format_bytes(floor.total_bytes)}"
    return Section(title=title, parts=tuple(parts))


def _summary(floor: Floor) -> str:
    memory = floor.footprint.memory
    share = f"{floor.undecided_share:.0%} of it is not decided by residuals."
    if memory is None or not memory.kernels:
        return f"{share} The compiler gave totals alone."
    kernel = memory.kernels[memory.peak]
    source = f", {short_source(kernel.source)}" if kernel.source else ""
    return (
        f"{share} The peak is in the {kernel.part} part: {kernel.op or kernel.name} in {kernel.scope or '/'}{source}."
    )


def _share_row(floor: Floor, share: Share) -> tuple[str, ...]:
    decided = "residuals" if share.holder in DECIDED else ""
    part = f"{share.size_bytes / floor.total_bytes:.1%}" if floor.total_bytes else ""
    equal = Counter(map(_buffer, share.largest))
    largest = "\n".join(line if count == 1 else f"{count} x {line}" for line, count in equal.items())
    return _HOLDERS[share.holder], format_bytes(share.size_bytes), part, decided, largest


def _buffer(buffer: Buffer) -> str:
    source = f", {short_source(buffer.source)}" if buffer.source else ""
    array = array_text(buffer.dtype, buffer.shape, buffer.op or buffer.name)
    return f"{format_bytes(buffer.size_bytes)} {array} in {buffer.scope or '/'}{source}"


def _lowering(remedies: tuple[Remedy, ...]) -> Table:
    return Table(
        title="What would lower it beside a plan",
        columns=columns("what", ">by about", "how"),
        rows=tuple((remedy.title, format_bytes(remedy.saves_bytes or 0), _how(remedy)) for remedy in remedies),
        notes=("Each alone, by the buffers of the compiled program; no compiler was asked what is left then.",),
    )
