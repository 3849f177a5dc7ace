"""A memory map as plain shapes: rectangles over time and address, and live bytes stacked by group.

Nothing here knows pixels of a page, colours or fonts; `figure` and `page` draw what `layout` returns. Buffers that
would be thinner than a pixel are folded with their neighbours of the same group, time and address, and a curve of
many kernels keeps of each short range the kernel at which most is alive, so that no peak is lost.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Literal, get_args

import numpy as np

from jaxckpt.hlo import Buffer, MemoryMap, Part, Role
from jaxckpt.report.picture.groups import Group, layer_groups, line_groups

ColourKey = Literal["layer", "role", "part", "line"]
"""Ways to colour buffers: by scope, by role, by part of the step, by line of code."""
KEYS: tuple[ColourKey, ...] = get_args(ColourKey)

_BACKWARD_PARTS = (Part.BACKWARD, Part.RECOMPUTE)
_MOST_SHARE = 0.5
"""Of the picture: where one layer covers more, another key may tell more buffers apart."""
_MOST_RECTANGLES = 5000
_FOLDED_PIXELS = 8
"""Thin buffers that begin and end within so many pixels of each other are folded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangle:
    """One buffer, or several thin ones, the largest first: kernels `[start, stop)`, addresses from low to high.

    Temporary allocations are placed end to end in one address space. `layer`, `role`, `part` and `line` are indices
    among `Picture.groups`, the same for all members. `size_bytes` adds up the members' sizes, which is not the
    rectangle's height where several were folded; `peak_bytes` those that are alive at the peak.
    """

    start: int
    stop: int
    low_bytes: int
    high_bytes: int
    layer: int
    role: int
    part: int
    line: int
    size_bytes: int
    peak_bytes: int
    members: tuple[Buffer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRange:
    """Kernels `[start, stop)` under one label, or shown by the one `at` which most temporaries are alive."""

    start: int
    stop: int
    label: str = ""
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """All that is drawn of a memory map.

    Attributes:
      groups: For each key ("layer", "role", "part", "line") what buffers are told apart by, in the order of stacking.
      first_key: The key to colour by at first: layers, or what tells most buffers apart where one layer covers most.
    """

    memory: MemoryMap  # what it was made from
    extent_bytes: int  # height of the address space: all temporary allocations
    groups: dict[ColourKey, tuple[Group, ...]]
    first_key: ColourKey
    rectangles: tuple[Rectangle, ...]  # large ones first, so that small ones are drawn over them
    samples: tuple[KernelRange, ...]  # the ranges of the curves
    curves: dict[ColourKey, tuple[tuple[int, ...], ...]]  # for each key and group the bytes alive at each sample
    parts: tuple[
        KernelRange, ...
    ]  # of the step, kernel by kernel, equal neighbours joined; labels are values of `Part`
    phases: tuple[KernelRange, ...]  # the same in a few words for the time axis


def layout(memory: MemoryMap, *, width: int = 1200, height: int = 600, points: int = 600) -> Picture:
    """Places a memory map's temporaries on a plane of so many pixels; arguments are there all the time.

    Curves have at most so many `points`. Folding becomes coarser until there are at most `_MOST_RECTANGLES`, or
    nothing is left to fold. Complexity: linear in buffers, and in kernels times groups.
    """
    (picture,) = layouts((memory,), width=width, height=height, points=points)
    return picture


def layouts(
    memories: Sequence[MemoryMap], *, width: int = 1200, height: int = 600, points: int = 600
) -> tuple[Picture, ...]:
    """The same of several memory maps, with the same groups and the same first key in all of them."""
    groups, group_of = _grouped([buffer for memory in memories for buffer in memory.temporaries])
    placed = [_placed(memory, group_of) for memory in memories]
    first_key = _first_key([each for rectangles in placed for each in rectangles])
    return tuple(
        Picture(
            memory=memory,
            extent_bytes=memory.temp_bytes,
            groups=groups,
            first_key=first_key,
            rectangles=_folded(rectangles, memory, width=width, height=height),
            samples=(samples := _samples(memory.live_bytes, points)),
            curves={key: _curves(rectangles, key, len(groups[key]), samples, memory) for key in KEYS},
            parts=_parts(memory, width),
            phases=_phases(memory),
        )
        for memory, rectangles in zip(memories, placed, strict=True)
    )


def short_array_text(dtype: str, shape: Sequence[int]) -> str:
    """A dtype and shape in short.

    Example:
      >>> short_array_text("bfloat16", (8, 1024))
      'bf16[8,1024]'
    """
    short = dtype.replace("bfloat", "bf").replace("float", "f").replace("uint", "u").replace("int", "i")
    return f"{short}[{','.join(map(str, shape))}]"


def _grouped(
    buffers: Sequence[Buffer],
) -> tuple[dict[ColourKey, tuple[Group, ...]], Callable[[Buffer], dict[ColourKey, int]]]:
    """The groups by key, and for a buffer the index of its group by key."""
    layers, layer_of = layer_groups(buffers)
    lines, line_of = line_groups(buffers)
    roles = [role for role in Role if any(b.role is role for b in buffers)]
    parts = [part for part in Part if any(b.part is part for b in buffers)]

    def group_of(buffer: Buffer) -> dict[ColourKey, int]:
        return {
            "layer": layer_of[buffer.scope],
            "role": roles.index(buffer.role),
            "part": parts.index(buffer.part),
            "line": line_of[buffer.source],
        }

    return {"layer": layers, "role": _named(roles), "part": _named(parts), "line": lines}, group_of


def _placed(memory: MemoryMap, group_of: Callable[[Buffer], dict[ColourKey, int]]) -> list[Rectangle]:
    """A rectangle for each buffer, in the address space of all allocations."""
    base = _bases(memory)
    return [
        Rectangle(
            start=b.born,
            stop=b.dies + 1,
            low_bytes=base[b.allocation] + b.offset_bytes,
            high_bytes=base[b.allocation] + b.offset_bytes + b.size_bytes,
            size_bytes=b.size_bytes,
            peak_bytes=b.size_bytes if b.born <= memory.peak <= b.dies else 0,
            members=(b,),
            **group_of(b),
        )
        for b in memory.temporaries
    ]


def _first_key(placed: Sequence[Rectangle]) -> ColourKey:
    shares = {key: _largest_share(placed, key) for key in KEYS}
    return "layer" if shares["layer"] <= _MOST_SHARE else min(KEYS, key=lambda key: shares[key])


def _largest_share(placed: Sequence[Rectangle], key: ColourKey) -> float:
    """Share of the picture that the largest group covers; 0.0 of an empty picture."""
    covered: Counter[int] = Counter()
    for each in placed:
        covered[getattr(each, key)] += each.size_bytes * (each.stop - each.start)
    return max(covered.values(), default=0) / max(covered.total(), 1)


def _bases(memory: MemoryMap) -> dict[int, int]:
    """Where each temporary allocation begins, standing on those before it."""
    used = {buffer.allocation for buffer in memory.temporaries}
    stacked = [allocation for allocation in memory.allocations if allocation.index in used]
    bases = accumulate((allocation.size_bytes for allocation in stacked), initial=0)
    return {allocation.index: base for allocation, base in zip(stacked, bases, strict=False)}


def _named(values: Sequence[Role | Part]) -> tuple[Group, ...]:
    neutral = (Role.OTHER, Part.UNKNOWN)
    return tuple(Group(key="" if v in neutral else v.value, label=v.value.replace("_", " ")) for v in values)


def _folded(placed: list[Rectangle], memory: MemoryMap, *, width: int, height: int) -> tuple[Rectangle, ...]:
    pixel_bytes, pixel_kernels = memory.temp_bytes / height, len(memory.kernels) / width
    while True:
        cells: dict[tuple[int, ...], list[Rectangle]] = {}
        for each in placed:
            cells.setdefault(_cell(each, pixel_bytes, pixel_kernels), []).append(each)
        if len(cells) <= _MOST_RECTANGLES or (pixel_bytes > memory.temp_bytes and pixel_kernels > len(memory.kernels)):
            break
        pixel_bytes, pixel_kernels = 2 * pixel_bytes, 2 * pixel_kernels
    return tuple(sorted(map(_joined, cells.values()), key=lambda r: -(r.stop - r.start) * (r.high_bytes - r.low_bytes)))


def _cell(each: Rectangle, pixel_bytes: float, pixel_kernels: float) -> tuple[int, ...]:
    """Key that folded buffers share; a visible buffer has a key of its own."""
    if each.size_bytes >= pixel_bytes and each.stop - each.start >= pixel_kernels:
        return (each.members[0].id,)
    cell_kernels = max(_FOLDED_PIXELS * pixel_kernels, 1.0)
    cell_bytes = max(pixel_bytes, 1.0)
    heights = (each.low_bytes / cell_bytes, each.high_bytes / cell_bytes)
    times = (each.start / cell_kernels, (each.stop - 1) / cell_kernels)
    return (each.layer, each.role, each.part, each.line, *map(int, (*heights, *times)))


def _joined(members: list[Rectangle]) -> Rectangle:
    """One rectangle over buffers of the same groups."""
    buffers = (buffer for each in members for buffer in each.members)
    return replace(
        members[0],
        start=min(each.start for each in members),
        stop=max(each.stop for each in members),
        low_bytes=min(each.low_bytes for each in members),
        high_bytes=max(each.high_bytes for each in members),
        size_bytes=sum(each.size_bytes for each in members),
        peak_bytes=sum(each.peak_bytes for each in members),
        members=tuple(sorted(buffers, key=lambda b: (-b.size_bytes, b.id))),
    )


def _samples(live_bytes: Sequence[int], points: int) -> tuple[KernelRange, ...]:
    """Equal ranges; of equal kernels the first, as in `MemoryMap.peak`."""
    step = max(1, -(-len(live_bytes) // points))
    kernels = range(len(live_bytes))
    ranges = (kernels[start : start + step] for start in kernels[::step])
    return tuple(KernelRange(start=s.start, stop=s.stop, at=max(s, key=live_bytes.__getitem__)) for s in ranges)


def _curves(
    placed: list[Rectangle], key: ColourKey, count: int, samples: tuple[KernelRange, ...], memory: MemoryMap
) -> tuple[tuple[int, ...], ...]:
    changes = np.zeros((count, len(memory.kernels) + 1), np.int64)
    for each in placed:
        changes[getattr(each, key), [each.start, each.stop]] += each.size_bytes, -each.size_bytes
    at = [sample.at for sample in samples]
    return tuple(map(tuple, np.cumsum(changes, axis=1)[:, at].tolist())) if at else ((),) * count


def _parts(memory: MemoryMap, width: int) -> tuple[KernelRange, ...]:
    """Group that most kernels of each pixel belong to."""
    parts = [kernel.part for kernel in memory.kernels]
    step = max(1, -(-len(parts) // width))
    pixels = [(at, Counter(parts[at : at + step]).most_common(1)[0][0]) for at in range(0, len(parts), step)]
    joined = [(part, [at for at, _ in run]) for part, run in groupby(pixels, key=lambda pixel: pixel[1])]
    return tuple(KernelRange(start=at[0], stop=min(at[-1] + step, len(parts)), label=part.value) for part, at in joined)


def _phases(memory: MemoryMap) -> tuple[KernelRange, ...]:
    """Forward until the first backward kernel, backward until the last, and what comes after; updates between."""
    parts = [kernel.part for kernel in memory.kernels]
    middle = memory.backward
    end = max((at + 1 for at, part in enumerate(parts) if part in _BACKWARD_PARTS), default=middle)
    within = parts[middle:end].count(Part.UPDATE)
    after = "update" if Part.UPDATE in parts[end:] else "end"
    phases = (
        KernelRange(start=0, stop=middle, label="forward"),
        KernelRange(
            start=middle, stop=end, label="backward and update" if within > (end - middle) / 20 else "backward"
        ),
        KernelRange(start=end, stop=len(parts), label=after),
    )
    return tuple(phase for phase in phases if phase.stop > phase.start)
