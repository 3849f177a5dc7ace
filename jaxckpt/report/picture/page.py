"""Memory maps as one HTML file that needs nothing else: template, style, script and data in one text.

The file opens without a network and fetches nothing. Names go in as JSON in which no tag can end or begin, and the
script puts them on the page as text only, so that a layer named `<script>` is shown and not run. Several maps stand
below one another, with equal scales of bytes, equal colours and one legend.
"""

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

from jaxckpt.hlo import Buffer, MemoryMap, Part, Space, Use
from jaxckpt.report.embedded_data import embedded_json
from jaxckpt.report.picture.groups import Group, colours, part_colour, plain_text
from jaxckpt.report.picture.layout import KEYS, Picture, Rectangle, layouts, short_array_text

_LARGEST_AT_PEAK = 40
_NAMED_OF_FOLDED = 4
_PLACEHOLDER = re.compile(r"\{\{(title|style|data|scene|panels|controls)\}\}")

MapFigures = Iterable[tuple[str, int | str]]
"""Labels, each with bytes or a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageWords:
    """Words of a page for what its maps are made of."""

    clock: str = "kernel"
    time_axis: str = "kernels in the order of the schedule"
    layers: str = "Layers"
    kernels: str = "Kernels"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageState:
    """Counters at one execution of a simulated run.

    Attributes:
      tick: The call that is executed. Runs of one program have these in common: the page's slider goes over them.
      free_bytes: Of the memory.
      piece_bytes: Of these in the largest piece.
      repeated: Executions so far of calls that were executed before.
      refused: Requests so far that no free piece could serve.
    """

    tick: int
    free_bytes: int
    piece_bytes: int
    repeated: int
    refused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PageMap:
    """One map of a page.

    Attributes:
      picture: Of `page_pictures`, one call for all maps of the page.
      name: Heading of the map; "" where it is the only one.
      figures: Above the map.
      states: Of a simulated run, for each of its executions; empty for a compiled program.
    """

    picture: Picture
    name: str = ""
    figures: MapFigures = ()
    states: Sequence[PageState] = ()


_WORDS = PageWords()


def memory_page(
    memories: MemoryMap | Mapping[str, MemoryMap],
    *,
    title: str | None = None,
    total_bytes: Mapping[str, int] | None = None,
) -> str:
    """An interactive page that shows where the temporaries of a step are, or of several by name.

    Args:
      memories: What is drawn.
      title: Heading of the page; the first program's name if None.
      total_bytes: By name the totals of footprints, which may include the program's code; the total of a map that is
        not named is that of its allocations.

    Returns:
      HTML. Its size is bounded whatever the program's, and below 1 MB for most.
    """
    named = {"": memories} if isinstance(memories, MemoryMap) else dict(memories)
    totals = total_bytes or {}
    pictures = page_pictures(tuple(named.values()))
    maps = [
        PageMap(picture=picture, name=name, figures=_figures(picture.memory, totals.get(name)))
        for name, picture in zip(named, pictures, strict=True)
    ]
    program = next((memory.program for memory in named.values()), "")
    return map_page(maps, title=program if title is None else title)


def page_pictures(memories: Sequence[MemoryMap]) -> tuple[Picture, ...]:
    """Pictures of memory maps in the resolution of a page, with the same groups and the same first key in all."""
    return layouts(memories, width=2400, height=900, points=1500)


def map_page(maps: Sequence[PageMap], *, title: str, words: PageWords = _WORDS) -> str:
    """A page of maps, as text."""
    parts = {
        "title": html.escape(plain_text(title)),
        "style": _template("page.css"),
        "scene": _template("scene.js"),
        "panels": _template("panels.js"),
        "controls": _template("controls.js"),
        "data": embedded_json(page_data(maps, words)),
    }
    return _PLACEHOLDER.sub(lambda match: parts[match[1]], _template("page.html"))


def page_data(maps: Sequence[PageMap], words: PageWords = _WORDS) -> dict[str, Any]:
    """Data that the page's script draws.

    Texts are kept once, in "texts"; elsewhere their index stands. Curves are kept as differences.
    """
    texts = _Texts()
    data = {
        "first_key": maps[0].picture.first_key if maps else KEYS[0],
        "groups": {key: _groups(maps[0].picture.groups[key]) if maps else [] for key in KEYS},
        "maps": [_map_data(each, texts) for each in maps],
        "words": asdict(words),
    }
    return data | {"texts": [plain_text(text)[:400] for text in texts]}


def _map_data(shown: PageMap, texts: "_Texts") -> dict[str, Any]:
    picture = shown.picture
    memory = picture.memory
    return {
        "name": plain_text(shown.name),
        "kernels": len(memory.kernels),
        "extent": picture.extent_bytes,
        "peak": {"at": memory.peak, "bytes": memory.peak_bytes},
        "figures": [list(pair) for pair in shown.figures],
        "problems": [plain_text(problem) for problem in memory.problems],
        "frames": [[texts[f.function], texts[f.source], f.caller] for f in memory.frames],
        "rectangles": [_rectangle(rectangle, memory, texts) for rectangle in picture.rectangles],
        "samples": [[s.start, s.stop, s.at, *_kernel(memory, s.at, texts)] for s in picture.samples],
        "curves": {key: list(map(_differences, picture.curves[key])) for key in KEYS},
        "parts": [[s.start, s.stop, part_colour(s.label), s.label] for s in picture.parts],
        "phases": [[s.start, s.stop, s.label] for s in picture.phases],
        "largest": _largest(picture, texts),
        "largest_of": len(memory.alive_at(memory.peak)),
        "states": [[s.tick, s.free_bytes, s.piece_bytes, s.repeated, s.refused] for s in shown.states],
    }


class _Texts(dict[str, int]):
    """Texts by number, each kept once."""

    def __missing__(self, text: str) -> int:
        return self.setdefault(text, len(self))


def _template(name: str) -> str:
    return files("jaxckpt.report.picture").joinpath(name).read_text(encoding="utf-8")


def _groups(groups: Sequence[Group]) -> list[dict[str, Any]]:
    hues = zip(groups, colours(groups), strict=True)
    return [{"label": plain_text(group.label), "colour": hue, "family": group.family} for group, hue in hues]


def _rectangle(rectangle: Rectangle, memory: MemoryMap, texts: _Texts) -> list[Any]:
    """Place, groups and sums; then a buffer's own facts, or the largest of those folded."""
    place = [rectangle.start, rectangle.stop, rectangle.low_bytes, rectangle.high_bytes]
    groups = [getattr(rectangle, key) for key in KEYS]
    sums = [rectangle.size_bytes, rectangle.peak_bytes, len(rectangle.members)]
    if len(rectangle.members) > 1:
        named = rectangle.members[:_NAMED_OF_FOLDED]
        return [*place, *groups, *sums, [[*_buffer(b, texts), b.size_bytes] for b in named]]
    (buffer,) = rectangle.members
    reader = memory.kernels[buffer.dies]
    where = f" in {reader.scope}" if reader.scope else ""
    facts = [texts[f"{reader.name}{where}"], texts[str(list(buffer.layout)) if buffer.layout else ""], buffer.count]
    facts.append(memory.innermost_frame(buffer))
    return [*place, *groups, *sums, *_buffer(buffer, texts), *facts]


def _buffer(buffer: Buffer, texts: _Texts) -> list[int]:
    array = short_array_text(buffer.dtype, buffer.shape) if buffer.dtype else ""
    return [texts[text] for text in (buffer.name, buffer.op, buffer.scope, array, buffer.source)]


def _kernel(memory: MemoryMap, at: int, texts: _Texts) -> list[int]:
    kernel = memory.kernels[at]
    part = "" if kernel.part is Part.UNKNOWN else kernel.part.value
    return [texts[text] for text in (kernel.name, kernel.op, kernel.scope, part, kernel.source)]


def _differences(values: Sequence[int]) -> list[int]:
    return [value - before for before, value in zip((0, *values), values, strict=False)]


def _largest(picture: Picture, texts: _Texts) -> list[list[int]]:
    """The largest buffers at the peak: rectangle, size, role, then names."""
    memory = picture.memory
    place = {b.id: at for at, rectangle in enumerate(picture.rectangles) for b in rectangle.members}
    return [
        [place[b.id], b.size_bytes, picture.rectangles[place[b.id]].role, *_buffer(b, texts)]
        for b in memory.alive_at(memory.peak)[:_LARGEST_AT_PEAK]
    ]


def _figures(memory: MemoryMap, total_bytes: int | None) -> MapFigures:
    """Figures above the map of a compiled program."""
    device = (a for a in memory.allocations if a.space is Space.DEVICE and a.use is not Use.LOCAL)
    yield "total on the device", sum(a.size_bytes for a in device) if total_bytes is None else total_bytes
    yield "temporaries alive at the peak", memory.peak_bytes
    yield "temporaries allocated", memory.temp_bytes
    yield "fragmentation", f"{memory.fragmentation:.3f}"
    for label, use, space in _ALLOCATED:
        size_bytes = sum(a.size_bytes for a in memory.allocations if a.use is use and a.space is space)
        if size_bytes:
            yield label, size_bytes
    yield "buffers", str(len(memory.temporaries))
    yield "kernels", str(len(memory.kernels))


_ALLOCATED = (
    ("arguments, all the time", Use.ARGUMENT, Space.DEVICE),
    ("new results", Use.OUTPUT, Space.DEVICE),
    ("constants", Use.CONSTANT, Space.DEVICE),
    ("host: arguments", Use.ARGUMENT, Space.HOST),
    ("host: temporaries", Use.TEMPORARY, Space.HOST),
)
