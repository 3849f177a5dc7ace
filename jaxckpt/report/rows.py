"""Tables and cells that reports have in common: rows with equal layers folded, arrays, lines of code, changes.

Read after `tree`.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from jaxckpt._units import format_bytes, format_seconds
from jaxckpt.ir.layers import Layers, fold_layers, layer_ranges
from jaxckpt.report.tree import Point, Scatter, Table, columns

_Item = TypeVar("_Item")


def layer_table(
    items: Iterable[_Item],
    headings: Sequence[str],
    cells: Callable[[Layers[_Item]], tuple[Any, ...]],
    *,
    scope: Callable[[_Item], str],
    alike: Callable[[_Item], Hashable],
    title: str = "",
    shown: int | None = None,
    rest: Callable[[int, Any], str] | None = None,
    notes: tuple[str, ...] = (),
) -> Table:
    """Table with a row for items that differ in nothing but their layer, under "scope", "layers" and `headings`.

    `cells` makes the row of a group, with a figure before it: rows of large figures come first. `rest` names the
    rows beyond `shown` by their number and the sum of their figures.
    """
    rows = []
    for group in fold_layers(items, scope=scope, alike=alike):
        figure, *row = cells(group)
        rows.append((figure, (group.scope or "/", layer_ranges(sorted(group.layers)), *row)))
    rows.sort(key=lambda row: -abs(row[0]))
    hidden = [] if shown is None else rows[shown:]
    return Table(
        title=title,
        columns=columns("scope", "layers", *headings),
        rows=tuple(row for _, row in rows),
        notes=notes,
        compact_rows=shown,
        rest=rest(len(hidden), sum(figure for figure, _ in hidden)) if rest else "",
    )


def more_kinds(count: int, size_bytes: int) -> str:
    """Name of hidden rows of kinds of values."""
    return f"and {count} more kinds, {format_bytes(size_bytes)}"


def table_of_known(
    title: str, headings: Sequence[str], rows: Sequence[Mapping[str, str]], notes: tuple[str, ...] = ()
) -> Table:
    """Table of the headings that some row has a text for; the first holds names, the others figures."""
    known = [heading for heading in headings if any(row.get(heading) for row in rows)]
    return Table(
        title=title,
        columns=columns(*(heading if heading == headings[0] else f">{heading}" for heading in known)),
        rows=tuple(tuple(row.get(heading, "") for heading in known) for row in rows),
        notes=notes,
    )


def memory_time_scatter(x_heading: str, points: Iterable[tuple[str, int, float, bool]]) -> Scatter:
    """Estimated time against memory, of points by name, bytes, seconds, and whether they are on the frontier."""
    drawn = (
        Point(
            name=name,
            x=float(total_bytes),
            y=step_s,
            x_text=format_bytes(total_bytes),
            y_text=format_seconds(step_s),
            on_frontier=on_frontier,
        )
        for name, total_bytes, step_s, on_frontier in points
    )
    title = "Estimated time against memory"
    return Scatter(
        title=title,
        x_heading=x_heading,
        y_heading="estimated step",
        points=tuple(drawn),
        x_unit="bytes",
        y_unit="seconds",
    )


def array_text(dtype: str, shape: Sequence[int] | None, name: str | None = "") -> str:
    """Short text of an array: "float32[2,3] name", without brackets where the shape is not known."""
    sizes = "" if shape is None else f"[{','.join(map(str, shape))}]"
    return f"{dtype}{sizes} {name or ''}".strip()


def short_source(source: str) -> str:
    """A line of code without its folders."""
    return source.rsplit("/", 1)[-1]


def signed_bytes(change: int, *, zero: str = "") -> str:
    """A difference for people.

    Example:
      >>> signed_bytes(1024), signed_bytes(-1024), signed_bytes(0, zero="0 B")
      ('+1 KiB', '-1 KiB', '0 B')
    """
    return signed(change, format_bytes, zero=zero)


def signed(change: Any, written: Callable[[Any], str], *, zero: str = "=") -> str:
    """A difference with its sign, its amount written by a function."""
    return f"{'+' if change > 0 else '-'}{written(abs(change))}" if change else zero
