"""Reports as HTML that stands alone: compact first, unfolding to everything, light and dark.

Nothing is fetched. Unfolding is `<details>`; pictures are drawn by a script that the report carries in itself, and a
report without pictures has no script. Colours are those of the page around it, at less strength, so that a notebook's
light and dark themes both fit. All rules of `html.css` begin with our own class, twice: nothing of the page around
changes, and a notebook's rules for tables do not win over ours. Every text of a report is escaped.

Read after `tree`.
"""

import html
import re
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from jaxckpt._errors import ReportFileError
from jaxckpt._files import require_place, write_to_place
from jaxckpt._shown import Shown, report_builder
from jaxckpt.report.charts import canvas_lines, charts_script
from jaxckpt.report.text import UNLIMITED, render_text
from jaxckpt.report.tree import Chart, Column, Element, Scatter, Section, Table, Text

_CLASS = "jaxckpt-report"
_DEEPEST = 6
_UNSHOWABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
"""Control characters and what is no character: HTML may not hold them, and files cannot."""

_STYLE = files("jaxckpt.report").joinpath("html.css").read_text(encoding="utf-8")
_PAGE = (
    ":root { color-scheme: light dark } body { margin: 0 auto; padding: 1.1rem 1.4rem 3rem; max-width: 120rem;"
    " background: #ffffff; color: #1f2328 }"
    " @media (prefers-color-scheme: dark) { body { background: #14161a; color: #e7e9ec } }"
)
"""The ground and the ink of the memory map's page."""


def report_of(data: Any) -> Section:
    """The report of data: a plan, a footprint, a comparison, a frontier, findings, and all else that has one."""
    if isinstance(data, Shown):
        section: Section = report_builder(data)(data)
        return section
    raise TypeError(
        f"report_of takes data that has a report (a plan, a footprint, a frontier, ...), not a {type(data).__name__}"
    )


def html_of(data: Any) -> str:
    """The same as a piece of HTML; what notebooks show."""
    return render_html(report_of(data))


def text_of(data: Any) -> str:
    """The same as plain text; what the shell and `print` show."""
    return render_text(report_of(data), width=UNLIMITED).rstrip("\n")


def render_html(part: Element) -> str:
    """A report as a piece of HTML, one element with its style, for a notebook or another page."""
    inner = "".join(_lowered(part, 1))
    name, script = charts_script(part)
    named = f' data-charts="{name}"' if name else ""
    return f'<div class="{_CLASS}"{named}><style>{_STYLE}</style>{inner}{script}</div>'


def render_page(part: Element, *, title: str = "jaxckpt") -> str:
    """A report as a whole page that needs nothing else."""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_escaped(title)}</title><style>{_PAGE}</style>"
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>{render_html(part)}</body></html>\n'


def save_page(part: Element, path: str | Path, *, title: str = "jaxckpt") -> None:
    """Writes a report as a page, whole or not at all."""
    save_text(render_page(part, title=title), path)


def save_text(text: str, path: str | Path) -> None:
    """Writes a report that was made a text, whole or not at all."""
    write_to_place(Path(path), text.encode(), called=_called(path), error=ReportFileError)


def require_report_folder(path: str | Path) -> None:
    """Refuses a path that takes no file: worth asking before anything is compiled."""
    require_place(Path(path), called=_called(path), error=ReportFileError)


def _called(path: str | Path) -> str:
    return f"the report {str(path)!r} cannot be written"


def _lowered(part: Element, level: int) -> Iterator[str]:
    match part:
        case Section():
            yield from _section(part, level)
        case Table():
            yield from _table(part)
        case Text():
            yield f"<p>{_escaped(part.text.strip())}</p>"
        case Scatter() | Chart():
            yield f"<figure><figcaption>{_escaped(part.title)}</figcaption>"
            yield from canvas_lines(part, escaped=_escaped)
            yield "</figure>"


def _section(section: Section, level: int) -> Iterator[str]:
    inner = (piece for part in section.parts for piece in _lowered(part, level + 1))
    title = _escaped(section.title)
    if section.folded:
        yield f"<details><summary>{title}</summary>"
        yield from inner
        yield "</details>"
    else:
        heading = f"h{min(level, _DEEPEST)}"
        yield f"<section><{heading}>{title}</{heading}>" if title else "<section>"
        yield from inner
        yield "</section>"


def _table(table: Table) -> Iterator[str]:
    if table.shown or not table.hidden:
        yield from _rows(table.title, table.columns, table.shown)
    if table.hidden:
        yield f'<details><summary class="rest">{_escaped(_hidden_line(table))}</summary>'
        yield from _rows("", table.columns, table.hidden)
        yield "</details>"
    yield from (f'<p class="note">{_escaped(note)}</p>' for note in table.notes)


def _hidden_line(table: Table) -> str:
    """Control that unfolds the hidden rows; it carries the table's title where every row is hidden at first."""
    if table.shown or not table.title:
        return table.rest_line
    return f"{table.title}: {table.rest_line}" if table.rest else table.title


def _rows(title: str, columns: tuple[Column, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield "<table>"
    if title:
        yield f"<caption>{_escaped(title)}</caption>"
    if any(column.heading for column in columns):
        yield "<thead><tr>"
        yield from (f"<th{_kind(column)}>{_escaped(column.heading)}</th>" for column in columns)
        yield "</tr></thead>"
    yield "<tbody>"
    for row in rows:
        yield "<tr>"
        yield from (f"<td{_kind(c)}>{_escaped(cell)}</td>" for c, cell in zip(columns, row, strict=True))
        yield "</tr>\n"
    yield "</tbody></table>"


def _kind(column: Column) -> str:
    return ' class="figures"' if column.figures else ""


def _escaped(text: str) -> str:
    """A text that is shown as it is, and runs nowhere."""
    return html.escape(_UNSHOWABLE.sub("\N{REPLACEMENT CHARACTER}", text), quote=True)
