"""Reports as text for a terminal, drawn by rich.

Read after `tree`.
"""

import io
from collections.abc import Sequence
from typing import Literal

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text as RichText

from jaxckpt.report.tree import Chart, Element, Point, Scatter, Section, Table, Text

UNLIMITED = 10_000
"""Columns of what is no terminal: tables are as wide as their content."""
_SENTENCE_WIDTH = 120
_PLOT_WIDTH, _PLOT_HEIGHT = 60, 10
_MARKS = "123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def print_report(part: Element, console: Console, *, unfold: bool = False) -> None:
    """Draws a report on a console; `unfold` shows rows beyond `Table.compact_rows` too."""
    match part:
        case Section():
            if part.title:
                console.print(RichText(part.title, style="bold"))
            for inner in part.parts:
                print_report(inner, console, unfold=unfold)
        case Table():
            _print_table(part, console, part.rows if unfold else part.shown)
        case Text():
            console.print(RichText(part.text), width=_sentence_width(console))
        case Scatter():
            console.print(RichText(_plotted(part)))
        case Chart():
            pass  # its numbers are in a table beside it


def render_text(part: Element, *, width: int = 120, unfold: bool = False) -> str:
    """A report as plain text."""
    stream = io.StringIO()
    print_report(part, Console(file=stream, width=width, color_system=None, force_terminal=False), unfold=unfold)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _sentence_width(console: Console) -> int:
    return _SENTENCE_WIDTH if console.width == UNLIMITED else console.width


def _print_table(table: Table, console: Console, rows: tuple[tuple[str, ...], ...]) -> None:
    if table.title:
        console.print(RichText(f" {table.title}"))
    if rows or not table.rows:
        console.print(Padding(_drawn(table, rows), (0, 0, 0, 1), expand=False))
    below = table.notes if len(rows) == len(table.rows) else (table.rest_line, *table.notes)
    for note in below:
        console.print(RichText(f" {note}", style="dim"), width=_sentence_width(console))
    console.print()


def _drawn(table: Table, rows: tuple[tuple[str, ...], ...]) -> RichTable:
    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_header=any(c.heading for c in table.columns))
    for column in table.columns:
        justify: Literal["left", "right"] = "right" if column.figures else "left"
        drawn.add_column(RichText(column.heading), justify=justify, no_wrap=column.figures, overflow="fold")
    for row in rows:
        drawn.add_row(*map(RichText, row))
    return drawn


def _plotted(scatter: Scatter) -> str:
    """A plot in characters with a legend; what is on the frontier has a star in the legend."""
    if not scatter.points:
        return f" {scatter.title}: nothing to draw\n"
    named = [point for point in scatter.points if point.name]
    marked = list(zip(_MARKS, named, strict=False))
    low, high = min(scatter.points, key=lambda p: p.x), max(scatter.points, key=lambda p: p.x)
    room = _PLOT_WIDTH - len(low.x_text)
    axis = [f" +{'-' * _PLOT_WIDTH}", f"  {low.x_text}{high.x_text:>{room}}  {scatter.x_heading}"]
    legend = [f"  {mark}{'*' if p.on_frontier else ' '} {p.name}: {p.x_text}, {p.y_text}" for mark, p in marked]
    if unmarked := named[len(_MARKS) :]:
        legend.append(f"  and {len(unmarked)} more points")
    title = f" {scatter.title} (up: {scatter.y_heading})"
    return "\n".join((title, *_grid(scatter, marked, unmarked), *axis, "", *legend, ""))


def _grid(scatter: Scatter, marked: Sequence[tuple[str, Point]], unmarked: Sequence[Point]) -> list[str]:
    grid = [[" "] * _PLOT_WIDTH for _ in range(_PLOT_HEIGHT)]
    small = [(".", point) for point in (*(p for p in scatter.points if not p.name), *unmarked)]
    for mark, point in (*small, *reversed(marked)):  # where two fall on one place, the first is seen
        right, up = scatter.place(point)
        grid[round((1 - up) * (_PLOT_HEIGHT - 1))][round(right * (_PLOT_WIDTH - 1))] = mark
    return [f" |{''.join(row)}".rstrip() for row in grid]
