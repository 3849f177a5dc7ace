"""The floor as a report: what the smallest plan takes and what for, and what would lower it.

Read after `rows`, `oom`.
"""

from collections import Counter

from jaxckpt._units import format_bytes
from jaxckpt.hlo import Buffer
from jaxckpt.oom.remedies import Remedy
from jaxckpt.planner.floor import DECIDED, Floor, Holder, Share
from jaxckpt.report.oom import how_text
from jaxckpt.report.rows import array_text, short_source
from jaxckpt.report.tree import Element, Section, Table, Text, columns

_WORDS = {
    Holder.ARGUMENTS: "arguments",
    Holder.RESULTS: "results that take over no argument",
    Holder.PROGRAM: "the program and its constants",
    Holder.RESIDUALS: "kept from forward to backward",
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
        rows=tuple(_row(floor, share) for share in floor.shares),
    )
    parts: list[Element] = [Text(text=_summary(floor)), shares]
    if floor.remedies:
        parts.append(_remedies(floor.remedies))
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


def _row(floor: Floor, share: Share) -> tuple[str, ...]:
    decided = "residuals" if share.holder in DECIDED else ""
    part = f"{share.size_bytes / floor.total_bytes:.1%}" if floor.total_bytes else ""
    equal = Counter(map(_buffer, share.largest))
    largest = "\n".join(line if count == 1 else f"{count} x {line}" for line, count in equal.items())
    return _WORDS[share.holder], format_bytes(share.size_bytes), part, decided, largest


def _buffer(buffer: Buffer) -> str:
    source = f", {short_source(buffer.source)}" if buffer.source else ""
    array = array_text(buffer.dtype, buffer.shape, buffer.op or buffer.name)
    return f"{format_bytes(buffer.size_bytes)} {array} in {buffer.scope or '/'}{source}"


def _remedies(remedies: tuple[Remedy, ...]) -> Table:
    return Table(
        title="What would lower it beside a plan",
        columns=columns("what", ">by about", "how"),
        rows=tuple((remedy.title, format_bytes(remedy.saves_bytes or 0), how_text(remedy)) for remedy in remedies),
        notes=("Each alone, by the buffers of the compiled program; no compiler was asked what is left then.",),
    )
