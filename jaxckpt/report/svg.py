"""Scatters and charts as SVG: points with their names and the frontier as steps, or lines with ticks and a legend.

Read after `tree`.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

from jaxckpt.report.tree import Chart, Line, Point, Scatter, share

Escape = Callable[[str], str]
"""Makes a text safe to stand in the page."""

_WIDTH, _HEIGHT = 640.0, 340.0
_LEFT, _RIGHT, _TOP, _BASE = 84.0, 490.0, 16.0, 290.0
"""The axes; right of them are the names of lines and of the last points."""
_INSET = 12.0
"""Pixels between the axes and the first and last points."""
_ACCENT = "#c2610c"
"""Seen on white and on black (4.2 and 5.0 to 1)."""
_COLORS = ("#2f6fb3", "#3a8f5c", _ACCENT, "#8a5bc2", "#7a828a", "#b03a5b")
_TICKS = 5
_LABEL_HEIGHT, _LETTER_WIDTH = 15.0, 6.4


def svg_lines(picture: Scatter | Chart, *, escaped: Escape) -> Iterator[str]:
    """One `<svg>` element, piece by piece."""
    label = escaped(f"{picture.title}: {picture.y_heading} over {picture.x_heading}")
    yield f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{label}" font-size="12.5">'
    stroke = 'stroke="currentColor" stroke-opacity=".5"'
    yield f'<path d="M{_LEFT:g} {_TOP:g}V{_BASE:g}H{_RIGHT:g}" fill="none" {stroke}/>'
    yield _text((_LEFT + _RIGHT) / 2, _HEIGHT - 8, escaped(picture.x_heading), "middle")
    middle = (_TOP + _BASE) / 2
    yield _text(12, middle, escaped(picture.y_heading), "middle", f'transform="rotate(-90 12 {middle:g})" ')
    yield from _scatter(picture, escaped) if isinstance(picture, Scatter) else _chart(picture, escaped)
    yield "</svg>"


def _pixels(across: float, up: float) -> tuple[float, float]:
    """Pixels from the left and the top edge, of places from 0 to 1."""
    right = _LEFT + _INSET + across * (_RIGHT - _LEFT - 2 * _INSET)
    return right, _BASE - _INSET - up * (_BASE - _TOP - 2 * _INSET)


def _text(x: float, y: float, words: str, anchor: str, more: str = "") -> str:
    return f'<text {more}x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">{words}</text>'


def _x_tick(place: float, words: str) -> str:
    return _text(_pixels(place, 0)[0], _BASE + 16, words, "middle")


def _y_tick(place: float, words: str) -> str:
    return _text(_LEFT - 6, _pixels(0, place)[1] + 4, words, "end")


### Scatters


def _scatter(scatter: Scatter, escaped: Escape) -> Iterator[str]:
    if not scatter.points:
        return
    for point in _ends(scatter, "x"):
        yield _x_tick(scatter.place(point)[0], escaped(point.x_text))
    for point in _ends(scatter, "y"):
        yield _y_tick(scatter.place(point)[1], escaped(point.y_text))
    if len(scatter.frontier) > 1:
        (x, y), *others = (_pixels(*scatter.place(point)) for point in scatter.frontier)
        steps = "".join(f"H{right:.1f}V{down:.1f}" for right, down in others)
        path = f"M{x:.1f} {y:.1f}{steps}"
        yield f'<path d="{path}" fill="none" stroke="{_ACCENT}" stroke-width="1.5" stroke-dasharray="4 3"/>'
    for point, (x, y) in zip(scatter.points, _labels(scatter), strict=True):
        color = _ACCENT if point.on_frontier else "currentColor"
        words = escaped(": ".join(filter(None, (point.name, f"{point.x_text}, {point.y_text}"))))
        right, down = _pixels(*scatter.place(point))
        yield f"<g><title>{words}</title>"
        yield f'<circle cx="{right:.1f}" cy="{down:.1f}" r="{4.5 if point.name else 2.0:g}" fill="{color}"/>'
        yield _text(x, y, escaped(_short(point.name)), "start") + "</g>"


def _ends(scatter: Scatter, axis: str) -> Iterable[Point]:
    """The points with the least and the most along an axis, or one of them where they are the same."""
    return dict.fromkeys(end(scatter.points, key=attrgetter(axis)) for end in (min, max))


def _labels(scatter: Scatter) -> list[tuple[float, float]]:
    """Where the names begin: above their points, moved down where they would lie on one another."""
    places: dict[int, tuple[float, float, float]] = {}
    for index in sorted(range(len(scatter.points)), key=lambda i: -scatter.points[i].y):
        point = scatter.points[index]
        x, y = _pixels(*scatter.place(point))
        y -= 5.0
        width = _LETTER_WIDTH * len(_short(point.name))
        start = x + 8.0 if x < _WIDTH * 0.7 else x - 8.0 - width
        near = [place for place in places.values() if start < place[1] and place[0] < start + width]
        while any(abs(y - top) < _LABEL_HEIGHT for _, _, top in near):
            y += 1.0
        places[index] = start, start + width, y
    return [(places[index][0], places[index][2]) for index in range(len(scatter.points))]


def _short(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:18]}...{name[-18:]}"


### Charts


def _chart(chart: Chart, escaped: Escape) -> Iterator[str]:
    lines = [_drawn(chart, line) for line in chart.lines]
    drawn = [point for points in lines for point in points]
    if not drawn:
        return
    xs, ys = [x for x, _ in drawn], [_scaled(chart, y) for _, y in drawn]
    yield from _ticks(chart, xs, ys)
    for number, (line, points) in enumerate(zip(chart.lines, lines, strict=True)):
        pixels = [_pixels(share(x, xs), share(_scaled(chart, y), ys)) for x, y in points]
        yield from _line(line, points, pixels, number, escaped(line.name))


def _drawn(chart: Chart, line: Line) -> list[tuple[float, float]]:
    return sorted(point for point in line.points if not chart.log or point[1] > 0)


def _ticks(chart: Chart, xs: list[float], ys: list[float]) -> Iterator[str]:
    for tick in sorted({x for line in chart.lines for x, _ in line.points}):
        yield _x_tick(share(tick, xs), f"{tick:g}")
    low, high = (min(ys), max(ys)) if max(ys) > min(ys) else (ys[0] - 0.5, ys[0] + 0.5)
    for tick in range(_TICKS):
        scaled = low + tick / (_TICKS - 1) * (high - low)
        yield _y_tick(tick / (_TICKS - 1), f"{10**scaled if chart.log else scaled:.3g}")


def _scaled(chart: Chart, y: float) -> float:
    return math.log10(y) if chart.log else y


def _line(
    line: Line, points: list[tuple[float, float]], pixels: list[tuple[float, float]], number: int, name: str
) -> Iterator[str]:
    """One line with its points and its name at the right."""
    color, height = _COLORS[number % len(_COLORS)], _TOP + 12 + 18 * number
    dashes = ' stroke-dasharray="5 3"' if line.dashed else ""
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in pixels)
    yield f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="1.6"{dashes}/>' if points else ""
    for (x, y), (right, down) in zip(points, pixels, strict=True):
        yield f'<circle cx="{right:.1f}" cy="{down:.1f}" r="2.6" fill="{color}">'
        yield f"<title>{name}: {x:g}, {y:.4g}</title></circle>"
    yield f'<path d="M{_RIGHT + 12:g} {height - 4:g}h18" stroke="{color}" stroke-width="2"{dashes}/>'
    yield _text(_RIGHT + 36, height, name, "start")
