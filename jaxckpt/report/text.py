"""Reports as text for a terminal, drawn by rich.

Read after `tree`.
"""

import io

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text as RichText

from jaxckpt.report.tree import Part, Section, Table, Text


def print_report(part: Part, console: Console) -> None:
    """Draws a report on a console."""
    match part:
        case Section():
            console.print(RichText(part.title, style="bold"))
            for inner in part.parts:
                print_report(inner, console)
        case Table():
            console.print(Padding(_drawn(part), (0, 0, 0, 1)))
            for note in part.notes:
                console.print(RichText(f" {note}", style="dim"))
            console.print()
        case Text():
            console.print(RichText(part.text))


def render_text(part: Part, *, width: int = 120) -> str:
    """A report as plain text.

    Args:
      part: The report.
      width: Characters a line.
    """
    stream = io.StringIO()
    print_report(part, Console(file=stream, width=width, color_system=None, force_terminal=False))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _drawn(table: Table) -> RichTable:
    drawn = RichTable(
        title=RichText(table.title) if table.title else None,
        title_justify="left",
        title_style="",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for column in table.columns:
        drawn.add_column(
            RichText(column.heading),
            justify="right" if column.figures else "left",
            no_wrap=column.figures,
            overflow="fold",
        )
    for row in table.rows:
        drawn.add_row(*map(RichText, row))
    return drawn
