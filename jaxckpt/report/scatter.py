"""A scatter as SVG: points with their names, axes, and the frontier as a line of steps.

Read after `tree`.
"""

from collections.abc import Callable, Iterator, Sequence

from jaxckpt.report.tree import Point, Scatter

_WIDTH, _HEIGHT = 640.0, 360.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 84.0, 24.0, 16.0, 52.0
_LABEL_HEIGHT = 13.0
_ACCENT = "#c2610c"
"""Seen on white and on black (4.3 and 4.9 to 1)."""


def svg_lines(scatter: Scatter, *, escaped: Callable[[str], str]) -> Iterator[str]:
    """One `<svg>` element, piece by piece.

    Args:
      scatter: What to draw.
      escaped: Makes a text safe to stand in the page.
    """
    label = escaped(f"{scatter.title}: {scatter.y_heading} over {scatter.x_heading}")
    yield f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{label}" font-size="11">'
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
    turn = f'transform="rotate(-90 12 {(_TOP + base) / 2:g})" '
    yield _text(12, (_TOP + base) / 2, escaped(scatter.y_heading), anchor="middle", more=turn)
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
        words = escaped(f"{point.name}: {point.x_text}, {point.y_text}")
        yield f"<g><title>{words}</title>"
        yield f'<circle cx="{_x(scatter, point):.1f}" cy="{_y(scatter, point):.1f}" r="4.5" fill="{color}"/>'
        anchor = "end" if x > _WIDTH * 0.7 else "start"
        shift = -8 if anchor == "end" else 8
        yield _text(x + shift, y + 4, escaped(_short(point.name)), anchor=anchor) + "</g>"


def _labels(scatter: Scatter) -> list[tuple[float, float]]:
    """Where the names stand: beside their points, moved down where they would lie on one another."""
    places: dict[int, tuple[float, float]] = {}
    for index in sorted(range(len(scatter.points)), key=lambda i: -scatter.points[i].y):
        x, y = _x(scatter, scatter.points[index]), _y(scatter, scatter.points[index])
        while any(abs(y - other_y) < _LABEL_HEIGHT and abs(x - other_x) < 150 for other_x, other_y in places.values()):
            y += 1.0
        places[index] = x, y
    return [places[index] for index in range(len(scatter.points))]


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
