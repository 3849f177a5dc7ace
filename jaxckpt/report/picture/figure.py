"""The memory map as a matplotlib figure: addresses over time above, live bytes over the same time below.

matplotlib is imported only here and only when a figure is asked for, and without `pyplot`: no window, no global
state. Names are drawn letter by letter (a "$" begins no formula), and an SVG keeps them as text.
"""

import math
import warnings
from collections.abc import Sequence
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jaxckpt._errors import MissingPackageError, PictureError
from jaxckpt._files import write_to_place
from jaxckpt._units import format_bytes
from jaxckpt.hlo import MemoryMap
from jaxckpt.report.picture.groups import Group, colours, part_colour, plain_text
from jaxckpt.report.picture.layout import KEYS, ColourKey, Picture, Rectangle, layout, short_array_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
_INK, _QUIET, _PEAK = "#1f2328", "#6a7078", "#b3261e"
_MOST_LEGEND = 14
_TITLES = {"layer": "Layers", "role": "Roles", "part": "Parts of the step", "line": "Lines of code"}
_Corner = Literal["upper left", "lower left"]
_TALL_SHARE = 0.008
"""Of the address axis: what is lower has no white edge, which would cover it."""
_NAMED_SHARE = 0.006
"""A rectangle is named within where it covers at least so much of the plane, ..."""
_NAMED_HEIGHT = 0.024
"""... and so much of the address axis."""
_CALLED_SHARE = 0.04
"""A buffer that is so much of the peak is named beside it."""
_MOST_CALLED = 5


def memory_figure(memory: MemoryMap, *, color: ColourKey | None = None, title: str | None = None) -> "Figure":
    """A matplotlib figure of where the temporaries of a step are, tied to no window and no `pyplot`.

    `color` is what buffers are coloured by and the curve is stacked by: layers if None, or what tells more buffers
    apart. The title is the program's name if None.
    """
    if color is not None and color not in KEYS:
        raise PictureError(
            f"memory_figure(color={color!r}) names no way to colour buffers.",
            got=repr(color),
            needed='"layer", "role", "part" or "line"',
            advice='color="layer"',
        )
    try:
        from matplotlib import figure as figures
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError as error:
        raise MissingPackageError(
            "a picture as PNG, SVG or PDF is drawn by matplotlib, which is not installed.",
            got=str(error),
            needed="matplotlib 3.8 or newer",
            advice='pip install "jaxckpt[pictures]", or draw a page: a path that ends in .html',
            package="matplotlib",
        ) from error

    picture = layout(memory, width=1100, height=420, points=550)
    key = picture.first_key if color is None else color
    figure = figures.Figure(figsize=(13, 8.2), dpi=110, facecolor="white")
    FigureCanvasAgg(figure)
    place = {"hspace": 0.06, "left": 0.075, "right": 0.82, "top": 0.89, "bottom": 0.075}
    upper, ribbon, lower = figure.subplots(3, sharex=True, height_ratios=(11, 0.32, 5.2), gridspec_kw=place)
    upper.set_xlim(0, max(len(memory.kernels), 1))
    upper.tick_params(axis="x", bottom=False)
    _draw_map(upper, picture, key)
    _draw_phases(upper, picture)
    spans = [(part.start, part.stop - part.start) for part in picture.parts]
    ribbon.broken_barh(spans, (0, 1), facecolors=[part_colour(part.label) for part in picture.parts])
    ribbon.set_axis_off()
    _draw_curve(lower, picture, key)
    for axes in (upper, lower):
        _finish(axes, picture)
    _draw_legends(figure, picture, key)
    _draw_title(figure, memory, title)
    return figure


def save_figure(memory: MemoryMap, path: str | Path, *, title: str | None = None) -> None:
    """Draws a memory map into a file that ends in .png, .svg or .pdf; the rest as `memory_figure`."""
    path = Path(path)
    figure = memory_figure(memory, title=title)
    from matplotlib import rc_context

    kind = path.suffix.lower().removeprefix(".")
    data = BytesIO()
    # Equal maps give equal files: no date, and ids that do not come from a clock.
    undated = {} if kind == "png" else {"CreationDate" if kind == "pdf" else "Date": None}
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "jaxckpt"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # a name in letters that the font lacks
        figure.savefig(data, format=kind, metadata=undated)
    write_to_place(path, data.getvalue(), called=f"draw to {str(path)!r}", error=PictureError)


### The map


def _draw_map(axes: "Axes", picture: Picture, key: ColourKey) -> None:
    from matplotlib.collections import PolyCollection

    shades = colours(picture.groups[key])
    corners = [
        ((r.start, r.low_bytes), (r.start, r.high_bytes), (r.stop, r.high_bytes), (r.stop, r.low_bytes))
        for r in picture.rectangles
    ]
    faces = [shades[getattr(r, key)] for r in picture.rectangles]
    tall = [r.high_bytes - r.low_bytes > _TALL_SHARE * picture.extent_bytes for r in picture.rectangles]
    edges = ["white" if is_tall else face for face, is_tall in zip(faces, tall, strict=True)]
    axes.add_collection(PolyCollection(corners, facecolors=faces, edgecolors=edges, linewidths=0.4))
    axes.set_ylim(0, max(picture.extent_bytes, 1) * 1.015)
    axes.set_ylabel("address", color=_QUIET)
    for rectangle, face in zip(picture.rectangles, faces, strict=True):
        _name(axes, picture, rectangle, face)
    _call_out(axes, picture)
    if picture.memory.kernels:
        peak, across = [picture.memory.peak + 0.5], axes.get_xaxis_transform()
        axes.plot(peak, [1.0], "v", color=_PEAK, markersize=6, transform=across, clip_on=False)


def _draw_phases(axes: "Axes", picture: Picture) -> None:
    across = axes.get_xaxis_transform()
    for phase in picture.phases:
        if phase.stop - phase.start > 0.06 * len(picture.memory.kernels):
            how = {"transform": across, "ha": "center", "va": "bottom", "color": _QUIET, "fontsize": 9}
            _write(axes, (phase.start + phase.stop) / 2, 1.012, phase.label, **how)
        if phase.start:
            axes.axvline(phase.start, color=_QUIET, linewidth=0.6, linestyle=":", zorder=1)


def _name(axes: "Axes", picture: Picture, rectangle: Rectangle, face: str) -> None:
    """A rectangle's name in it, as long as fits, where it is large enough."""
    across = (rectangle.stop - rectangle.start) / max(len(picture.memory.kernels), 1)
    up = (rectangle.high_bytes - rectangle.low_bytes) / max(picture.extent_bytes, 1)
    if len(rectangle.members) > 1 or across * up < _NAMED_SHARE or up < _NAMED_HEIGHT:
        return
    buffer = rectangle.members[0]
    scope = buffer.scope or buffer.name
    texts = (f"{scope}  {short_array_text(buffer.dtype, buffer.shape)}  {format_bytes(buffer.size_bytes)}", scope)
    fitting = next((text for text in texts if len(text) <= across * 150), "")
    color, middle = "white" if _is_dark(face) else _INK, (rectangle.start + rectangle.stop) / 2
    how = {"ha": "center", "va": "center", "color": color, "fontsize": 7, "clip_on": True}
    _write(axes, middle, _middle(rectangle), fitting, **how)


def _call_out(axes: "Axes", picture: Picture) -> None:
    """The largest buffers alive at the peak, named beside the line that marks it."""
    memory = picture.memory
    right = memory.peak < 0.62 * len(memory.kernels)
    called = [r for r in picture.rectangles if r.peak_bytes > _CALLED_SHARE * memory.peak_bytes]
    for rectangle in sorted(called, key=lambda r: -r.peak_bytes)[:_MOST_CALLED]:
        buffer, far = rectangle.members[0], len(memory.kernels) / 50
        if rectangle.stop - rectangle.start > 4 * far:
            continue  # wide enough to be followed to where it begins
        edge = rectangle.stop if right else rectangle.start
        owner = f"{buffer.scope}: {buffer.name}" if buffer.scope else buffer.name
        size = f"{short_array_text(buffer.dtype, buffer.shape)}, {format_bytes(buffer.size_bytes)}"
        axes.annotate(
            f"{plain_text(owner)}\n{size}",
            (edge, _middle(rectangle)),
            xytext=(max(edge, memory.peak) + far if right else min(edge, memory.peak) - far, _middle(rectangle)),
            **_boxed(right=right, va="center", fontsize=8, color=_INK),
            parse_math=False,
            arrowprops={"arrowstyle": "-", "color": _QUIET, "linewidth": 0.7},
        )


def _boxed(*, right: bool, **how: Any) -> dict[str, Any]:
    """Keywords of a text in a white box that begins or ends at its place."""
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5}
    return {"ha": "left" if right else "right", "bbox": box, "zorder": 6, **how}


def _middle(rectangle: Rectangle) -> float:
    return (rectangle.low_bytes + rectangle.high_bytes) / 2


def _is_dark(colour: str) -> bool:
    red, green, blue = bytes.fromhex(colour[1:])
    return 0.299 * red + 0.587 * green + 0.114 * blue < 140


### The curve


def _draw_curve(axes: "Axes", picture: Picture, key: ColourKey) -> None:
    memory, highest = picture.memory, max(picture.memory.peak_bytes, picture.extent_bytes, 1)
    if picture.samples:
        edges = [*(s.start for s in picture.samples), picture.samples[-1].stop]
        heights = accumulate(picture.curves[key], lambda below, own: tuple(map(sum, zip(below, own, strict=True))))
        # From the top down, each to the ground: bands side by side would let the ground shine through between them.
        for shade, height in reversed([*zip(colours(picture.groups[key]), heights, strict=True)]):
            axes.stairs(height, edges, fill=True, facecolor=shade, linewidth=0)
    axes.set_ylim(0, highest * 1.12)
    axes.axhline(picture.extent_bytes, color=_QUIET, linewidth=0.7, linestyle="--")
    words, across = f"allocated {format_bytes(picture.extent_bytes)} ", axes.get_yaxis_transform()
    how = {"transform": across, "ha": "right", "va": "bottom", "fontsize": 8, "color": _QUIET}
    _write(axes, 0.995, picture.extent_bytes, words, **how)
    axes.set_ylabel("alive", color=_QUIET)
    axes.set_xlabel("kernels in the order of the schedule", color=_QUIET)
    if memory.kernels:
        right = memory.peak < 0.62 * len(memory.kernels)
        axes.annotate(
            f"peak: {format_bytes(memory.peak_bytes)} at kernel {memory.peak}",
            (memory.peak + 0.5, memory.peak_bytes),
            xytext=(8 if right else -8, -4),
            textcoords="offset points",
            **_boxed(right=right, va="top", color=_PEAK, fontsize=9.5, fontweight="bold"),
        )


def _finish(axes: "Axes", picture: Picture) -> None:
    """Bytes up the axis, in steps of a power of two, quiet lines, and the peak."""
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    step_bytes = 2 ** max(0, round(math.log2(max(axes.get_ylim()[1] / 5, 1))))
    axes.yaxis.set_major_locator(MultipleLocator(step_bytes))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(round(value))))
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#c4c8ce")
    axes.tick_params(colors=_QUIET, labelsize=8.5)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color="#e7e9ec", linewidth=0.6)
    if picture.memory.kernels:
        axes.axvline(picture.memory.peak + 0.5, color=_PEAK, linewidth=0.7, linestyle="--", zorder=5)


### Words


def _draw_legends(figure: "Figure", picture: Picture, key: ColourKey) -> None:
    """Groups from the top of the stack down, a family as one entry with its gradient; then the parts of the ribbon."""
    families: dict[Any, list[tuple[Group, str]]] = {}
    for group, shade in zip(picture.groups[key], colours(picture.groups[key]), strict=True):
        families.setdefault(group if group.family is None else group.family, []).append((group, shade))
    entries = []
    for members in reversed(families.values()):
        groups, shades = zip(*members, strict=True)
        label = f"{groups[0].label} to {groups[-1].label}" if len(groups) > 1 else groups[0].label
        entries.append((_ending(label) if key == "line" else _short(label), shades))
    shown, rest = entries[:_MOST_LEGEND], len(entries) - _MOST_LEGEND
    if rest > 0:
        shown.append((f"and {rest} more", ("white",)))
    _add_legend(figure, "upper left", _TITLES[key], shown)
    names = dict.fromkeys(part.label for part in picture.parts)
    _add_legend(figure, "lower left", "Kernels", [(name, (part_colour(name),)) for name in names])


def _add_legend(figure: "Figure", corner: _Corner, title: str, entries: Sequence[tuple[str, Sequence[str]]]) -> None:
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.patches import Patch

    handles: list[Any] = [tuple(Patch(color=shade, linewidth=0) for shade in shades) for _, shades in entries]
    legend = figure.legend(
        handles,
        [""] * len(entries),
        loc=corner,
        bbox_to_anchor=(0.83, 0.9 if corner == "upper left" else 0.06),
        title=title,
        title_fontproperties={"weight": "bold", "size": 9.5},
        alignment="left",
        frameon=False,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
    )
    for text, (label, _) in zip(legend.get_texts(), entries, strict=True):
        text.set(parse_math=False, text=plain_text(label), fontsize=9, color=_INK)


def _draw_title(figure: "Figure", memory: MemoryMap, title: str | None) -> None:
    heading = memory.program if title is None else title
    _write(figure, 0.075, 0.975, _short(heading, 90), va="top", fontsize=14, fontweight="bold", color=_INK)
    facts = (
        f"temporaries: {format_bytes(memory.peak_bytes)} alive at the peak, {format_bytes(memory.temp_bytes)} "
        f"allocated, fragmentation {memory.fragmentation:.3f}; {len(memory.temporaries)} buffers, "
        f"{len(memory.kernels)} kernels"
    )
    _write(figure, 0.075, 0.942, facts, va="top", fontsize=9.5, color=_QUIET)


def _write(on: Any, x: float, y: float, text: str, **how: Any) -> None:
    on.text(x, y, plain_text(text), parse_math=False, **how)


def _short(text: str, most: int = 24) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _ending(text: str, most: int = 24) -> str:
    return text if len(text) <= most else f"…{text[1 - most :]}"
