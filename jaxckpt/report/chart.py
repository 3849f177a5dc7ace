"""A chart as SVG: lines over one axis, with ticks and a legend.

Read after `tree`.
"""

import math
from collections.abc import Callable, Iterator

from jaxckpt.report.tree import Chart, Line

_WIDTH, _HEIGHT = 640.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 150.0, 16.0, 48.0
_COLORS = ("#2f6fb3", "#3a8f5c", "#c2610c", "#8a5bc2", "#7a828a", "#b03a5b")
"""Seen on white and on black."""
_TICKS = 5


def chart_lines(chart: Chart, *, escaped: Callable[[str], str]) -> Iterator[str]:
    """One `<svg>` element, piece by piece.

    Args:
      chart: What to draw.
      escaped: Makes a text safe to stand in the page.
    """
    label = escaped(f"{chart.title}: {chart.y_heading} over {chart.x_heading}")
    yield f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{label}" font-size="12.5">'
    points = [point for line in chart.lines for point in line.points if not chart.log or point[1] > 0]
    if points:
        frame = _Frame(chart, points)
        yield from frame.axes(escaped)
        for number, line in enumerate(chart.lines):
            yield from frame.line(line, _COLORS[number % len(_COLORS)], number, escaped)
    yield "</svg>"


class _Frame:
    """Places numbers on the paper."""

    def __init__(self, chart: Chart, points: list[tuple[float, float]]):
        self.chart = chart
        self.left, self.right = min(x for x, _ in points), max(x for x, _ in points)
        ys = [self._scaled(y) for _, y in points]
        self.low, self.high = min(ys), max(ys)
        if self.high == self.low:
            self.low, self.high = self.low - 0.5, self.high + 0.5

    def _scaled(self, y: float) -> float:
        return math.log10(y) if self.chart.log else y

    def x(self, value: float) -> float:
        """From the left edge of the paper."""
        share = (value - self.left) / (self.right - self.left) if self.right > self.left else 0.5
        return _LEFT + 8 + share * (_WIDTH - _LEFT - _RIGHT - 16)

    def y(self, value: float) -> float:
        """From the top edge of the paper."""
        share = (self._scaled(value) - self.low) / (self.high - self.low)
        return _HEIGHT - _BOTTOM - 8 - share * (_HEIGHT - _TOP - _BOTTOM - 16)

    def axes(self, escaped: Callable[[str], str]) -> Iterator[str]:
        """Both axes with their ticks and headings."""
        base, end = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        stroke = 'stroke="currentColor" stroke-opacity=".5"'
        yield f'<path d="M{_LEFT:g} {_TOP:g}V{base:g}H{end:g}" fill="none" {stroke}/>'
        for tick in sorted({x for line in self.chart.lines for x, _ in line.points}):
            yield _text(self.x(tick), base + 16, f"{tick:g}", "middle")
        for i in range(_TICKS):
            scaled = self.low + i * (self.high - self.low) / (_TICKS - 1)
            value = 10**scaled if self.chart.log else scaled
            yield _text(_LEFT - 6, self.y(value) + 4, f"{value:.3g}", "end")
        yield _text((_LEFT + end) / 2, _HEIGHT - 8, escaped(self.chart.x_heading), "middle")
        rotated = f'transform="rotate(-90 12 {(_TOP + base) / 2:g})" '
        yield _text(12, (_TOP + base) / 2, escaped(self.chart.y_heading), "middle", rotated)

    def line(self, line: Line, color: str, number: int, escaped: Callable[[str], str]) -> Iterator[str]:
        """One line with its points and its name at the right."""
        points = sorted(point for point in line.points if not self.chart.log or point[1] > 0)
        name, height = escaped(line.name), _TOP + 12 + 18 * number
        dashes = ' stroke-dasharray="5 3"' if line.dashed else ""
        path = "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)
        yield f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="1.6"{dashes}/>' if points else ""
        for x, y in points:
            yield f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="2.6" fill="{color}">'
            yield f"<title>{name}: {x:g}, {y:.4g}</title></circle>"
        start = _WIDTH - _RIGHT + 12
        yield f'<path d="M{start:g} {height - 4:g}h18" stroke="{color}" stroke-width="2"{dashes}/>'
        yield _text(start + 24, height, name, "start")


def _text(x: float, y: float, words: str, anchor: str, more: str = "") -> str:
    return f'<text {more}x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">{words}</text>'
