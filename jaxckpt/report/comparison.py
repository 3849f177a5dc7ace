"""A comparison as a report: totals, memory against time, scopes, buffers that came and went, ops done again.

Read after `memory`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from jaxckpt._units import format_bytes, format_seconds
from jaxckpt.comparison import BufferChange, ComparedVersion, Comparison, PeakChange, RecomputedOp, ScopeFigures
from jaxckpt.hlo import ScopeMemory
from jaxckpt.ir.layers import fold_layers, layer_ranges
from jaxckpt.report import tree
from jaxckpt.report.tree import Point, Scatter, Section, Table, Text, columns

_NAMED = 3
_SCOPE_ROWS = 12
_CHANGE_ROWS = 12


def comparison_report(comparison: Comparison, *, depth: int | None = None) -> Section:
    """Versions side by side; differences are against the first, equal layers folded.

    Args:
      comparison: The data.
      depth: Scopes deeper than so many names are left out: what is below a scope counts in it. None shows all.

    Example:
      >>> from jaxckpt.compiler import Footprint
      >>> from jaxckpt.comparison import compare_footprints
      >>> made = Footprint(argument_bytes=1, output_bytes=0, alias_bytes=0, temp_bytes=7)
      >>> comparison_report(compare_footprints({"a": made, "b": made})).parts[0].rows[1]
      ('b', '8 B', '0 B', '1 B', '7 B')
    """
    parts: list[tree.Element] = [_totals(comparison)]
    parts += [Text(text=f"Note: {note}") for note in comparison.notes]
    if len(comparison.versions) > 1:
        if sum(version.footprint.step_s > 0 for version in comparison.versions) > 1:
            parts.append(_scatter(comparison))
        parts += _differences(comparison, depth)
    first, *others = comparison.names
    against = ", ".join(others) if len(others) <= _NAMED else f"{len(others)} versions"
    return Section(title=f"{against} against {first}" if others else first, parts=tuple(parts))


def _differences(comparison: Comparison, depth: int | None) -> Iterator[tree.Element]:
    if any(figures is not None for line in comparison.scopes for figures in line.figures):
        held = _scopes(comparison, depth, "held from forward to backward", lambda row: row.held_bytes)
        at_peak = _scopes(comparison, depth, "at the peak", lambda row: row.peak_bytes)
        yield Section(title="By scope", parts=(held, at_peak), folded=True)
    for peak in comparison.peaks:
        yield _peak(comparison.names[0], peak, folded=len(comparison.peaks) > 1)
    if comparison.recomputed:
        yield _recomputed(comparison)


def _totals(comparison: Comparison) -> Table:
    rows = [dict(_cells(comparison, version)) for version in comparison.versions]
    headings = [heading for heading in _HEADINGS if any(row.get(heading) for row in rows)]
    return Table(
        title="",
        columns=columns(*(heading if heading == "version" else f">{heading}" for heading in headings)),
        rows=tuple(tuple(row.get(heading, "") for heading in headings) for row in rows),
    )


_HEADINGS = (
    "version",
    "total",
    "against the first",
    "arguments",
    "temporaries",
    "alive at the peak",
    "host",
    "step (est.)",
    "recomputed",
    "frontier",
)


def _cells(comparison: Comparison, version: ComparedVersion) -> Iterator[tuple[str, str]]:
    made, first = version.footprint, comparison.versions[0].footprint
    yield "version", version.name
    yield "total", format_bytes(made.total_bytes)
    if version is not comparison.versions[0]:
        yield "against the first", _signed(made.total_bytes - first.total_bytes)
    yield "arguments", format_bytes(made.argument_bytes)
    yield "temporaries", format_bytes(made.temp_bytes)
    if made.memory is not None:
        yield "alive at the peak", format_bytes(made.memory.peak_bytes)
    if made.host_bytes:
        yield "host", format_bytes(made.host_bytes)
    if made.step_s:
        yield "step (est.)", format_seconds(made.step_s)
    position = comparison.versions.index(version)
    runs = sum(op.runs[position] for op in comparison.recomputed)
    if runs:
        yield "recomputed", f"{runs} kernels"
    if version.name in comparison.frontier:
        yield "frontier", "yes"


def _scatter(comparison: Comparison) -> Scatter:
    points = (
        Point(
            name=version.name,
            x=float(version.footprint.total_bytes),
            y=version.footprint.step_s,
            x_text=format_bytes(version.footprint.total_bytes),
            y_text=format_seconds(version.footprint.step_s),
            on_frontier=version.name in comparison.frontier,
        )
        for version in comparison.versions
        if version.footprint.step_s
    )
    return Scatter(
        title="Estimated time against memory", x_heading="total", y_heading="estimated step", points=tuple(points)
    )


def _scopes(
    comparison: Comparison, depth: int | None, words: str, figure: Callable[[ScopeMemory], int]
) -> Table | Text:
    """One row a scope of which the versions differ, largest difference first; folded layers are added up."""

    def bytes_of(lines: Sequence[ScopeFigures]) -> tuple[int, ...]:
        """For each version the sum over lines."""
        columns_of = zip(*(line.figures for line in lines), strict=True)
        return tuple(sum(figure(row) for row in column if row is not None) for column in columns_of)

    shallow = [line for line in comparison.scopes if _depth(line.scope) <= (depth or _depth(line.scope))]
    groups = fold_layers(shallow, scope=lambda line: line.scope, alike=lambda _: None)
    found = [(bytes_of(group.items), group.scope, layer_ranges(sorted(group.layers))) for group in groups]
    differing = [each for each in found if len(set(each[0])) > 1]
    differing.sort(key=lambda each: -max(abs(size - each[0][0]) for size in each[0]))
    rows = tuple(
        (scope or "whole step", layers, *map(format_bytes, sizes), *(_signed(s - sizes[0]) for s in sizes[1:]))
        for sizes, scope, layers in differing
    )
    changes = [f">{name} - {comparison.names[0]}" for name in comparison.names[1:]]
    same = len(found) - len(differing)
    if not rows:
        return Text(text=f"Bytes {words}: the same in all versions, for each of {same} scopes.")
    return Table(
        title=f"Bytes {words}",
        columns=columns("scope", "layers", *(f">{name}" for name in comparison.names), *changes),
        rows=rows,
        notes=(f"{same} scopes take the same in all versions.",) if same else (),
        compact_rows=_SCOPE_ROWS,
        rest=f"and {len(rows) - _SCOPE_ROWS} more scopes",
    )


def _depth(scope: str) -> int:
    return scope.count("/") + 1 if scope else 0


def _peak(first: str, peak: PeakChange, *, folded: bool) -> Section:
    went_bytes = sum(change.change_bytes for change in peak.went)
    came_bytes = sum(change.change_bytes for change in peak.came)
    title = (
        f"At the peak, from {first} to {peak.name}: {_signed(went_bytes + came_bytes)}"
        f" ({format_bytes(-went_bytes)} went, {format_bytes(came_bytes)} came)"
    )
    tables = [
        _changes(f"{word} ({len(changes)} kinds)", changes)
        for word, changes in (("Went", peak.went), ("Came", peak.came))
        if changes
    ]
    nothing = Text(text="The same buffers are alive.")
    return Section(title=title, parts=tuple(tables) or (nothing,), folded=folded)


def _changes(title: str, changes: tuple[BufferChange, ...]) -> Table:
    rows = sorted(_change_rows(changes), key=lambda row: -abs(row[0]))
    rest_bytes = sum(size_bytes for size_bytes, _ in rows[_CHANGE_ROWS:])
    return Table(
        title=title,
        columns=columns("scope", "layers", "buffer", "part", "role", ">each", ">before", ">after", ">change"),
        rows=tuple(row for _, row in rows),
        compact_rows=_CHANGE_ROWS,
        rest=f"and {len(rows) - _CHANGE_ROWS} more, {_signed(rest_bytes)}",
    )


def _change_rows(changes: Iterable[BufferChange]) -> Iterator[tuple[int, tuple[str, ...]]]:
    def alike(change: BufferChange) -> tuple[object, ...]:
        b = change.buffer
        return b.op, b.dtype, b.shape, b.part, b.role, b.size_bytes, change.before, change.after

    for group in fold_layers(changes, scope=lambda change: change.buffer.scope, alike=alike):
        first, size_bytes = group.items[0], sum(change.change_bytes for change in group.items)
        buffer = first.buffer
        yield (
            size_bytes,
            (
                group.scope or "/",
                layer_ranges(sorted(group.layers)),
                f"{buffer.dtype}[{','.join(map(str, buffer.shape))}] {buffer.op}".rstrip(),
                str(buffer.part),
                str(buffer.role).replace("_", " "),
                format_bytes(buffer.size_bytes),
                str(sum(change.before for change in group.items)),
                str(sum(change.after for change in group.items)),
                _signed(size_bytes),
            ),
        )


def _recomputed(comparison: Comparison) -> Section:
    rows = sorted(_recomputed_rows(comparison.recomputed), key=lambda row: -row[0])
    table = Table(
        title="",
        columns=columns("scope", "layers", "op", "by", *(f">{name}" for name in comparison.names)),
        rows=tuple(row for _, row in rows),
        notes=("Kernels that run a second time in one step, trip counts of loops included.",),
        compact_rows=_CHANGE_ROWS,
        rest=f"and {len(rows) - _CHANGE_ROWS} more",
    )
    return Section(title="Recomputed", parts=(table,), folded=True)


def _recomputed_rows(ops: Iterable[RecomputedOp]) -> Iterator[tuple[int, tuple[str, ...]]]:
    for group in fold_layers(ops, scope=lambda op: op.scope, alike=lambda op: (op.op, op.by_xla)):
        first = group.items[0]
        runs = tuple(map(sum, zip(*(op.runs for op in group.items), strict=True)))
        layers = layer_ranges(sorted(group.layers))
        by = "XLA itself" if first.by_xla else "the step"
        yield max(runs), (group.scope or "/", layers, first.op, by, *map(str, runs))


def _signed(size_bytes: int) -> str:
    """A change for people."""
    return "0 B" if size_bytes == 0 else f"{'+' if size_bytes > 0 else ''}{format_bytes(size_bytes)}"
