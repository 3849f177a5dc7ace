"""A scatter as SVG: points with their names, axes, and the frontier as a line of steps.

Read after `tree`.
"""

from collections.abc import Callable, Iterator, Sequence

from jaxckpt.report.tree import Point, Scatter

_WIDTH, _HEIGHT = 640.0, 360.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 84.0, 24.0, 16.0, 52.0
_LABEL_HEIGHT = 15.0
_LETTER_WIDTH = 6.4
_LIFT, _ASIDE = 5.0, 8.0
_ACCENT = "#c2610c"
"""Seen on white and on black (4.2 and 5.0 to 1)."""


def svg_lines(scatter: Scatter, *, escaped: Callable[[str], str]) -> Iterator[str]:
    """One `<svg>` element, piece by piece.

    Args:
      scatter: What to draw.
      escaped: Makes a text safe to stand in the page.
    """
    label = escaped(f"{scatter.title}: {scatter.y_heading} over {scatter.x_heading}")
    yield f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{label}" font-size="12.5">'
    yield from _axes(scatter, escaped)
    yield from _frontier(scatter)
    yield from _points(scatter, escaped)
    yield "</svg>"


def _axes(scatter: Scatter, escaped: Callable[[str], str]) -> Iterator[str]:
    base, end = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    line = 'stroke="currentColor" stroke-opacity=".5"'
    yield f'<path d="M{_LEFT:g} {_TOP:g}V{base:g}H{end:g}" fill="none" {line}/>'
    middle = (_LEFT + end) / 2
    yield _text(middle, _HEIGHT - 8, escaped(scatter.x_heading), anchor="middle")
    rotated = f'transform="rotate(-90 12 {(_TOP + base) / 2:g})" '
    yield _text(12, (_TOP + base) / 2, escaped(scatter.y_heading), anchor="middle", more=rotated)
    if not scatter.points:
        return
    for point in _ends(scatter.points, lambda p: p.x):
        yield _text(_x(scatter, point), base + 16, escaped(point.x_text), anchor="middle")
    for point in _ends(scatter.points, lambda p: p.y):
        yield _text(_LEFT - 6, _y(scatter, point) + 4, escaped(point.y_text), anchor="end")


def _frontier(scatter: Scatter) -> Iterator[str]:
    points = scatter.frontier
    if len(points) < 2:
        return
    first, *others = points
    steps = "".join(f"H{_x(scatter, p):.1f}V{_y(scatter, p):.1f}" for p in others)
    start = f"M{_x(scatter, first):.1f} {_y(scatter, first):.1f}"
    yield f'<path d="{start}{steps}" fill="none" stroke="{_ACCENT}" stroke-width="1.5" stroke-dasharray="4 3"/>'


def _points(scatter: Scatter, escaped: Callable[[str], str]) -> Iterator[str]:
    for point, (x, y) in zip(scatter.points, _labels(scatter), strict=True):
        color = _ACCENT if point.on_frontier else "currentColor"
        words = escaped(": ".join(filter(None, (point.name, f"{point.x_text}, {point.y_text}"))))
        radius = 4.5 if point.name else 2.0
        yield f"<g><title>{words}</title>"
        yield f'<circle cx="{_x(scatter, point):.1f}" cy="{_y(scatter, point):.1f}" r="{radius:g}" fill="{color}"/>'
        yield _text(x, y, escaped(_short(point.name)), anchor="start") + "</g>"


def _labels(scatter: Scatter) -> list[tuple[float, float]]:
    """Where the names begin: above their points, moved down where they would lie on one another."""
    places: dict[int, tuple[float, float, float]] = {}
    for index in sorted(range(len(scatter.points)), key=lambda i: -scatter.points[i].y):
        point = scatter.points[index]
        x, y = _x(scatter, point), _y(scatter, point) - _LIFT
        width = _LETTER_WIDTH * len(_short(point.name))
        start = x + _ASIDE if x < _WIDTH * 0.7 else x - _ASIDE - width
        near = [place for place in places.values() if start < place[1] and place[0] < start + width]
        while any(abs(y - top) < _LABEL_HEIGHT for _, _, top in near):
            y += 1.0
        places[index] = start, start + width, y
    return [(places[index][0], places[index][2]) for index in range(len(scatter.points))]


def _short(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:18]}...{name[-18:]}"


def _text(x: float, y: float, words: str, *, anchor: str, more: str = "") -> str:
    return f'<text {more}x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">{words}</text>'


def _ends(points: Sequence[Point], key: Callable[[Point], float]) -> tuple[Point, ...]:
    """The least and the most; one of them where they are the same."""
    least, most = min(points, key=key), max(points, key=key)
    return (least,) if key(least) == key(most) else (least, most)


def _x(scatter: Scatter, point: Point) -> float:
    return _LEFT + 20 + scatter.place(point)[0] * (_WIDTH - _LEFT - _RIGHT - 60)


def _y(scatter: Scatter, point: Point) -> float:
    return _HEIGHT - _BOTTOM - 16 - scatter.place(point)[1] * (_HEIGHT - _TOP - _BOTTOM - 32)
