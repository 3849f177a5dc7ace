"""Scatters and charts as canvases that Chart.js draws: with ticks, a legend and a tip at the pointer.

`chart.umd.min.js` is Chart.js 4.6.1 (MIT, see `LICENSE.chart.js.md`) as its npm package has it, without the address of
its source map. A report carries the library in itself, once, and only where the report has a picture: nothing is
fetched. Where no script runs, as in a notebook that is not trusted, a canvas is empty; its points are text inside it.

Read after `jaxckpt.report.tree`.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.resources import files
from typing import Any

from jaxckpt.report.embedded_data import embedded_json
from jaxckpt.report.tree import Chart, Element, Line, Point, Scatter, Section

Escape = Callable[[str], str]
"""Makes a text safe to stand in the page."""


def canvas_lines(picture: Scatter | Chart, *, escaped: Escape) -> Iterator[str]:
    """One canvas in its place, piece by piece; its text is what a reader without eyes or script gets."""
    label = escaped(f"{picture.title}: {picture.y_heading} over {picture.x_heading}")
    yield f'<div class="chart"><canvas role="img" aria-label="{label}">'
    yield escaped("; ".join(_texts(picture)))
    yield "</canvas></div>"


def charts_script(part: Element) -> tuple[str, str]:
    """Name of a report's pictures, the same for equal ones, and the script element that draws them; "" without any."""
    pictures = list(_pictures(part))
    if not pictures:
        return "", ""
    data = embedded_json([_data(picture) for picture in pictures])
    name = hashlib.sha256(data.encode()).hexdigest()[:12]
    # Chart.js finds a module of its own, so that no loader of a notebook takes it.
    library = f"const exports = {{}}, module = {{ exports }};\n{_file('chart.umd.min.js')}\nreturn module.exports;"
    inner = f"const Chart = (() => {{ {library} }})();\n{_file('charts.js')}"
    return name, f'<script>((name, pictures) => {{\n{inner}\n}})("{name}", {data});</script>'


def _file(name: str) -> str:
    return files("jaxckpt.report.charts").joinpath(name).read_text(encoding="utf-8")


def _pictures(part: Element) -> Iterator[Scatter | Chart]:
    match part:
        case Section():
            for inner in part.parts:
                yield from _pictures(inner)
        case Scatter() | Chart():
            yield part


def _data(picture: Scatter | Chart) -> dict[str, Any]:
    common = {"x_heading": picture.x_heading, "y_heading": picture.y_heading}
    if isinstance(picture, Chart):
        lines = [[line.name, line.dashed, _line_points(picture, line)] for line in picture.lines]
        return common | {"x_unit": "", "y_unit": "", "log": picture.log, "lines": lines}
    others = [point for point in picture.points if not point.on_frontier]
    return common | {
        "x_unit": picture.x_unit,
        "y_unit": picture.y_unit,
        "frontier": _scatter_points(picture.frontier),
        "beaten": _scatter_points(point for point in others if point.name),
        "small": _scatter_points(point for point in others if not point.name),
    }


def _scatter_points(points: Iterable[Point]) -> list[list[Any]]:
    return [[point.name, point.x, point.y, _point_text(point)] for point in points]


def _point_text(point: Point) -> str:
    return ": ".join(filter(None, (point.name, f"{point.x_text}, {point.y_text}")))


def _line_points(chart: Chart, line: Line) -> list[list[Any]]:
    """Points from left to right; of a logarithmic axis those that are positive."""
    drawn = sorted(point for point in line.points if not chart.log or point[1] > 0)
    return [["", x, y, f"{line.name}: {x:g}, {y:.4g}"] for x, y in drawn]


def _texts(picture: Scatter | Chart) -> Sequence[str]:
    if isinstance(picture, Scatter):
        return [_point_text(point) for point in picture.points]
    return [text for line in picture.lines for _, _, _, text in _line_points(picture, line)]
