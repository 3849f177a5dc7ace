"""The memory map as a matplotlib figure: addresses over time above, live bytes over the same time below.

matplotlib is imported only here and only when a figure is asked for, and without `pyplot`: no window, no global
state. Names are drawn letter by letter (a "$" begins no formula), and an SVG keeps them as text.
"""

import warnings
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxckpt._errors import MissingPackageError, PictureError
from jaxckpt._files import write_to_place
from jaxckpt._units import format_bytes
from jaxckpt.hlo import MemoryMap
from jaxckpt.report.picture.groups import Group, family_label, plain_text
from jaxckpt.report.picture.layout import KEYS, ColourKey, Picture, Rectangle, described, layout
from jaxckpt.report.picture.palette import colours, part_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
_INK, _QUIET, _PEAK = "#1f2328", "#6a7078", "#b3261e"
_MOST_LEGEND = 14
_TALL_SHARE = 0.008
"""Of the address axis: what is lower has no white edge, which would cover it."""
_NAMED_SHARE = 0.006
"""A rectangle is named within where it covers at least so much of the plane, ..."""
_NAMED_HEIGHT = 0.024
"""... and so much of the address axis."""
_CALLED_SHARE = 0.04
"""A buffer that is so much of the peak is named beside it."""
_MOST_CALLED = 5


def memory_figure(memory: MemoryMap, *, color: ColourKey = "layer", title: str | None = None) -> "Figure":
    """A matplotlib figure of where the temporaries of a step are, tied to no window and no `pyplot`.

    `color` is what buffers are coloured by and the curve is stacked by; the title is the program's name if None.
    """
    if color not in KEYS:
        raise PictureError(
            f"memory_figure(color={color!r}) names no way to colour buffers.",
            got=repr(color),
            needed='"layer", "role" or "part"',
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
    figure = figures.Figure(figsize=(13, 8.2), dpi=110, facecolor="white")
    FigureCanvasAgg(figure)
    place = {"hspace": 0.06, "left": 0.075, "right": 0.82, "top": 0.89, "bottom": 0.075}
    upper, ribbon, lower = figure.subplots(3, sharex=True, height_ratios=(11, 0.32, 5.2), gridspec_kw=place)
    _draw_map(upper, picture, color)
    _draw_ribbon(ribbon, picture)
    _draw_curve(lower, picture, color)
    _draw_legend(figure, picture, color)
    _draw_title(figure, memory, title)
    return figure


def save_figure(memory: MemoryMap, path: str | Path, *, color: ColourKey = "layer", title: str | None = None) -> None:
    """Draws a memory map into a file that ends in .png, .svg or .pdf; the rest as `memory_figure`."""
    path = Path(path)
    figure = memory_figure(memory, color=color, title=title)
    from matplotlib import rc_context

    kind = path.suffix.lower().removeprefix(".")
    data = BytesIO()
    # Equal maps give equal files: no date, and ids that do not come from a clock.
    undated = {} if kind == "png" else {"CreationDate" if kind == "pdf" else "Date": None}
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "jaxckpt"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # a name in letters that the font lacks
        figure.savefig(data, format=kind, metadata=undated)
    write_to_place(path, data.getvalue(), called=f"draw to {str(path)!r}", error=PictureError)


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
    axes.set_xlim(0, max(len(picture.memory.kernels), 1))
    axes.set_ylim(0, max(picture.extent_bytes, 1) * 1.015)
    _byte_axis(axes, picture.extent_bytes)
    axes.set_ylabel("address", color=_QUIET)
    axes.tick_params(axis="x", bottom=False, labelbottom=False)
    _tidy(axes)
    _mark_peak(axes, picture)
    for rectangle, face in zip(picture.rectangles, faces, strict=True):
        _name(axes, picture, rectangle, face)
    _call_out(axes, picture)
    for phase in picture.phases:
        share = (phase.stop - phase.start) / max(len(picture.memory.kernels), 1)
        if share > 0.06:
            middle, above = (phase.start + phase.stop) / 2, axes.get_xaxis_transform()
            _write(
                axes, middle, 1.012, phase.label, transform=above, ha="center", va="bottom", color=_QUIET, fontsize=9
            )
        if phase.start:
            axes.axvline(phase.start, color=_QUIET, linewidth=0.6, linestyle=(0, (1, 2)), zorder=1)


def _name(axes: "Axes", picture: Picture, rectangle: Rectangle, face: str) -> None:
    """A rectangle's name in it, on as many lines as fit, where it is large enough."""
    across = (rectangle.stop - rectangle.start) / max(len(picture.memory.kernels), 1)
    up = (rectangle.high_bytes - rectangle.low_bytes) / max(picture.extent_bytes, 1)
    if len(rectangle.members) > 1 or across * up < _NAMED_SHARE or up < _NAMED_HEIGHT:
        return
    buffer = rectangle.members[0]
    scope = buffer.scope or buffer.name
    texts = [f"{scope}  {described(buffer.dtype, buffer.shape)}  {format_bytes(buffer.size_bytes)}", scope]
    letters = across * 150
    fitting = [text for text in texts if len(text) <= letters]
    if fitting:
        color, middle = "white" if _is_dark(face) else _INK, (rectangle.start + rectangle.stop) / 2
        how = {"ha": "center", "va": "center", "color": color, "fontsize": 7, "clip_on": True}
        _write(axes, middle, _middle(rectangle), fitting[0], **how)


def _call_out(axes: "Axes", picture: Picture) -> None:
    """The largest buffers alive at the peak, named beside the line that marks it."""
    memory = picture.memory
    right = memory.peak < 0.62 * len(memory.kernels)
    called = [r for r in picture.rectangles if r.peak_bytes > _CALLED_SHARE * memory.peak_bytes]
    largest = sorted(called, key=lambda r: -r.peak_bytes)[:_MOST_CALLED]
    for rectangle in largest:
        buffer, far = rectangle.members[0], len(memory.kernels) / 50
        if rectangle.stop - rectangle.start > 4 * far:
            continue  # wide enough to be followed to where it begins
        edge = rectangle.stop if right else rectangle.start
        owner = f"{buffer.scope}: {buffer.name}" if buffer.scope else buffer.name
        size = f"{described(buffer.dtype, buffer.shape)}, {format_bytes(buffer.size_bytes)}"
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


def _draw_ribbon(axes: "Axes", picture: Picture) -> None:
    """Group of each kernel."""
    from matplotlib.collections import PolyCollection

    corners = [((s.start, 0), (s.start, 1), (s.stop, 1), (s.stop, 0)) for s in picture.parts]
    faces = [part_colour(stretch.label) for stretch in picture.parts]
    axes.add_collection(PolyCollection(corners, facecolors=faces, linewidths=0))
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.set_ylabel("kernels", rotation=0, ha="right", va="center", color=_QUIET, fontsize=8)
    axes.tick_params(axis="x", bottom=False, labelbottom=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _draw_curve(axes: "Axes", picture: Picture, key: ColourKey) -> None:
    import numpy as np

    edges = np.array([*(s.start for s in picture.samples), *(s.stop for s in picture.samples[-1:])], float)
    if picture.samples and picture.groups[key]:
        heights = np.cumsum(np.array(picture.curves[key], float), axis=0)
        # From the top down, each to the ground: bands side by side would let the ground shine through between them.
        for shade, height in zip(colours(picture.groups[key])[::-1], heights[::-1], strict=True):
            axes.stairs(height, edges, fill=True, facecolor=shade, linewidth=0)
    axes.set_ylim(0, max(picture.memory.peak_bytes, picture.extent_bytes, 1) * 1.12)
    axes.axhline(picture.extent_bytes, color=_QUIET, linewidth=0.7, linestyle=(0, (4, 3)))
    words, across = f"allocated {format_bytes(picture.extent_bytes)} ", axes.get_yaxis_transform()
    how = {"transform": across, "ha": "right", "va": "bottom", "fontsize": 8, "color": _QUIET}
    _write(axes, 0.995, picture.extent_bytes, words, **how)
    _byte_axis(axes, max(picture.memory.peak_bytes, picture.extent_bytes))
    axes.set_ylabel("alive", color=_QUIET)
    axes.set_xlabel("kernels in the order of the schedule", color=_QUIET)
    _tidy(axes)
    _mark_peak(axes, picture, label=True)


def _mark_peak(axes: "Axes", picture: Picture, *, label: bool = False) -> None:
    memory = picture.memory
    if not memory.kernels:
        return
    middle = memory.peak + 0.5
    axes.axvline(middle, color=_PEAK, linewidth=0.7, linestyle=(0, (5, 3)), zorder=5)
    if not label:
        axes.plot([middle], [1.0], "v", color=_PEAK, markersize=6, transform=axes.get_xaxis_transform(), clip_on=False)
        return
    right = middle < 0.62 * len(memory.kernels)
    axes.annotate(
        f"peak: {format_bytes(memory.peak_bytes)} at kernel {memory.peak}",
        (middle, memory.peak_bytes),
        xytext=(8 if right else -8, -4),
        textcoords="offset points",
        **_boxed(right=right, va="top", color=_PEAK, fontsize=9.5, fontweight="bold"),
    )


def _draw_legend(figure: "Figure", picture: Picture, key: ColourKey) -> None:
    """Groups from the top of the stack down, a family as one entry with its gradient."""
    from matplotlib.patches import Rectangle as Patch

    left, width, line = 0.835, 0.017, 0.026
    y = _legend_title(figure, left, 0.885, {"layer": "Layers", "role": "Roles", "part": "Parts of the step"}[key])
    shades = dict(zip(picture.groups[key], colours(picture.groups[key]), strict=True))
    entries = _entries(picture.groups[key])
    for members in entries[:_MOST_LEGEND]:
        height = min(0.011 * len(members), 0.13) if len(members) > 1 else 0.016
        for at, group in enumerate(members):
            step = height / len(members)
            figure.add_artist(Patch((left, y - (len(members) - at) * step), width, step, color=shades[group], lw=0))
        label = family_label(members) if len(members) > 1 else members[0].label
        _write(figure, left + width + 0.008, y - height / 2, _short(label), va="center", fontsize=9, color=_INK)
        y -= height + line - 0.016
    if len(entries) > _MOST_LEGEND:
        _write(figure, left, y, f"and {len(entries) - _MOST_LEGEND} more", va="top", fontsize=9, color=_QUIET)
        y -= line
    y = _legend_title(figure, left, min(y - 0.02, 0.375), "Kernels")
    for name in dict.fromkeys(stretch.label for stretch in picture.parts):
        figure.add_artist(Patch((left, y - 0.016), width, 0.016, color=part_colour(name), lw=0))
        _write(figure, left + width + 0.008, y - 0.008, name, va="center", fontsize=9, color=_INK)
        y -= line


def _legend_title(figure: "Figure", left: float, y: float, text: str) -> float:
    _write(figure, left, y, text, va="top", fontsize=9.5, color=_INK, fontweight="bold")
    return y - 0.032


def _entries(groups: Sequence[Group]) -> list[list[Group]]:
    """Groups for a legend, topmost first; members of one family together."""
    entries: dict[Any, list[Group]] = {}
    for group in groups:
        entries.setdefault(group if group.family is None else group.family, []).append(group)
    return list(entries.values())[::-1]


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


def _byte_axis(axes: "Axes", extent_bytes: int) -> None:
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    unit = next((unit for unit in (2**30, 2**20, 2**10) if extent_bytes >= unit), 1)
    step = next(s for s in _STEPS if extent_bytes / unit <= 6 * s)
    axes.yaxis.set_major_locator(MultipleLocator(step * unit))
    name = {2**30: "GiB", 2**20: "MiB", 2**10: "KiB", 1: "B"}[unit]
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / unit:g} {name}" if value else "0"))


_STEPS = (0.25, 0.5, 1, 2, 4, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, *(10**power for power in range(4, 16)))


def _tidy(axes: "Axes") -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#c4c8ce")
    axes.tick_params(colors=_QUIET, labelsize=8.5)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color="#e7e9ec", linewidth=0.6)


def _is_dark(colour: str) -> bool:
    red, green, blue = bytes.fromhex(colour[1:])
    return 0.299 * red + 0.587 * green + 0.114 * blue < 140


def _short(text: str, most: int = 24) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
