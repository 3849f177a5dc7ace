"""Scatters and charts as SVG: points with their names and the frontier as steps, or lines with ticks and a legend.

Read after `tree`.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jaxckpt.report.tree import Chart, Line, Point, Scatter, share

Escape = Callable[[str], str]
"""Makes a text safe to stand in the page."""

_WIDTH, _TOP = 640.0, 16.0
_ACCENT = "#c2610c"
"""Seen on white and on black (4.2 and 5.0 to 1)."""
_COLORS = ("#2f6fb3", "#3a8f5c", _ACCENT, "#8a5bc2", "#7a828a", "#b03a5b")
_TICKS = 5
_LABEL_HEIGHT, _LETTER_WIDTH = 15.0, 6.4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Paper:
    """The height of a picture, its margins, and how far from the axes the first points are."""

    height: float
    left: float
    right: float
    bottom: float
    inset_x: tuple[float, float]
    inset_y: float

    def x(self, place: float) -> float:
        """Pixels from the left edge, of a place from 0 to 1."""
        first, last = self.inset_x
        return self.left + first + place * (_WIDTH - self.left - self.right - first - last)

    def y(self, place: float) -> float:
        """Pixels from the top edge, of a place from 0 to 1, which is higher."""
        base = self.height - self.bottom
        return base - self.inset_y - place * (base - _TOP - 2 * self.inset_y)

    def axes(self, picture: Scatter | Chart, escaped: Escape) -> Iterator[str]:
        """Both axes with their headings."""
        base, end = self.height - self.bottom, _WIDTH - self.right
        stroke = 'stroke="currentColor" stroke-opacity=".5"'
        yield f'<path d="M{self.left:g} {_TOP:g}V{base:g}H{end:g}" fill="none" {stroke}/>'
        yield _text((self.left + end) / 2, self.height - 8, escaped(picture.x_heading), "middle")
        rotated = f'transform="rotate(-90 12 {(_TOP + base) / 2:g})" '
        yield _text(12, (_TOP + base) / 2, escaped(picture.y_heading), "middle", rotated)

    def x_tick(self, place: float, words: str) -> str:
        return _text(self.x(place), self.height - self.bottom + 16, words, "middle")

    def y_tick(self, place: float, words: str) -> str:
        return _text(self.left - 6, self.y(place) + 4, words, "end")


_SCATTER = _Paper(height=360.0, left=84.0, right=24.0, bottom=52.0, inset_x=(20.0, 40.0), inset_y=16.0)
_CHART = _Paper(height=300.0, left=64.0, right=150.0, bottom=48.0, inset_x=(8.0, 8.0), inset_y=8.0)


def svg_lines(picture: Scatter | Chart, *, escaped: Escape) -> Iterator[str]:
    """One `<svg>` element, piece by piece."""
    paper = _SCATTER if isinstance(picture, Scatter) else _CHART
    label = escaped(f"{picture.title}: {picture.y_heading} over {picture.x_heading}")
    yield f'<svg viewBox="0 0 {_WIDTH:g} {paper.height:g}" role="img" aria-label="{label}" font-size="12.5">'
    yield from paper.axes(picture, escaped)
    yield from _scatter(picture, escaped) if isinstance(picture, Scatter) else _chart(picture, escaped)
    yield "</svg>"


def _text(x: float, y: float, words: str, anchor: str, more: str = "") -> str:
    return f'<text {more}x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">{words}</text>'


### Scatters


def _scatter(scatter: Scatter, escaped: Escape) -> Iterator[str]:
    for point in _ends(scatter, lambda p: p.x):
        yield _SCATTER.x_tick(scatter.place(point)[0], escaped(point.x_text))
    for point in _ends(scatter, lambda p: p.y):
        yield _SCATTER.y_tick(scatter.place(point)[1], escaped(point.y_text))
    if len(scatter.frontier) > 1:
        (x, y), *others = (_pixels(scatter, point) for point in scatter.frontier)
        steps = "".join(f"H{right:.1f}V{down:.1f}" for right, down in others)
        path = f"M{x:.1f} {y:.1f}{steps}"
        yield f'<path d="{path}" fill="none" stroke="{_ACCENT}" stroke-width="1.5" stroke-dasharray="4 3"/>'
    for point, (x, y) in zip(scatter.points, _labels(scatter), strict=True):
        color = _ACCENT if point.on_frontier else "currentColor"
        words = escaped(": ".join(filter(None, (point.name, f"{point.x_text}, {point.y_text}"))))
        right, down = _pixels(scatter, point)
        yield f"<g><title>{words}</title>"
        yield f'<circle cx="{right:.1f}" cy="{down:.1f}" r="{4.5 if point.name else 2.0:g}" fill="{color}"/>'
        yield _text(x, y, escaped(_short(point.name)), "start") + "</g>"


def _ends(scatter: Scatter, key: Callable[[Point], float]) -> list[Point]:
    """The least and the most; one of them where they are the same."""
    if not scatter.points:
        return []
    least, most = min(scatter.points, key=key), max(scatter.points, key=key)
    return [least] if key(least) == key(most) else [least, most]


def _pixels(scatter: Scatter, point: Point) -> tuple[float, float]:
    across, up = scatter.place(point)
    return _SCATTER.x(across), _SCATTER.y(up)


def _labels(scatter: Scatter) -> list[tuple[float, float]]:
    """Where the names begin: above their points, moved down where they would lie on one another."""
    places: dict[int, tuple[float, float, float]] = {}
    for index in sorted(range(len(scatter.points)), key=lambda i: -scatter.points[i].y):
        point = scatter.points[index]
        x, y = _pixels(scatter, point)
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
    lines = [sorted(point for point in line.points if not chart.log or point[1] > 0) for line in chart.lines]
    xs = [x for points in lines for x, _ in points]
    ys = [_scaled(chart, y) for points in lines for _, y in points]
    if not xs:
        return
    yield from _ticks(chart, xs, ys)
    for number, (line, points) in enumerate(zip(chart.lines, lines, strict=True)):
        pixels = [(_CHART.x(share(x, xs)), _CHART.y(share(_scaled(chart, y), ys))) for x, y in points]
        yield from _line(line, points, pixels, number, escaped(line.name))


def _ticks(chart: Chart, xs: list[float], ys: list[float]) -> Iterator[str]:
    for tick in sorted({x for line in chart.lines for x, _ in line.points}):
        yield _CHART.x_tick(share(tick, xs), f"{tick:g}")
    low, high = (min(ys), max(ys)) if max(ys) > min(ys) else (ys[0] - 0.5, ys[0] + 0.5)
    for i in range(_TICKS):
        place = i / (_TICKS - 1)
        scaled = low + place * (high - low)
        yield _CHART.y_tick(place, f"{10**scaled if chart.log else scaled:.3g}")


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
    start = _WIDTH - _CHART.right + 12
    yield f'<path d="M{start:g} {height - 4:g}h18" stroke="{color}" stroke-width="2"{dashes}/>'
    yield _text(start + 24, height, name, "start")
