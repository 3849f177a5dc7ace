"""A comparison as a report: totals, memory against time, scopes, buffers that came and went, ops done again.

Verdicts on rules and names are comparisons too. At the end, a comparison as CSV and as plain data. Read after `rows`.
"""

import csv
import dataclasses
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxckpt._units import format_bytes, format_seconds
from jaxckpt.comparison import (
    BufferChange,
    ComparedVersion,
    Comparison,
    PeakChange,
    RecomputedOp,
    Row,
    ScopeFigures,
    Verdict,
    Verdicts,
    comparison_rows,
)
from jaxckpt.hlo import ScopeMemory
from jaxckpt.ir.layers import Layers, fold_layers, layer_ranges
from jaxckpt.report.memory import role_text
from jaxckpt.report.rows import array_text, layer_table, memory_time_scatter, signed, signed_bytes, table_of_known
from jaxckpt.report.tree import Element, Section, Table, Text, columns

_NAMED = 3
_SCOPE_ROWS = 12
_CHANGE_ROWS = 12


def comparison_report(comparison: Comparison, *, depth: int | None = None) -> Section:
    """Versions side by side; differences are against the first, equal layers folded.

    Scopes deeper than `depth` names are left out: what is below a scope counts in it.
    """
    cells = [dict(_cells(comparison, version)) for version in comparison.versions]
    parts: list[Element] = [table_of_known("", _HEADINGS, cells)]
    parts += [Text(text=f"Note: {note}") for note in comparison.notes]
    if len(comparison.versions) > 1:
        timed = [(each.name, each.footprint) for each in comparison.versions if each.footprint.step_s]
        if len(timed) > 1:
            optimal = comparison.frontier
            points = ((name, made.total_bytes, made.estimated_step_s, name in optimal) for name, made in timed)
            parts.append(memory_time_scatter("total", points))
        parts += _differences(comparison, depth)
    first, *others = comparison.names
    against = ", ".join(others) if len(others) <= _NAMED else f"{len(others)} versions"
    return Section(title=f"{against} against {first}" if others else first, parts=tuple(parts))


def _differences(comparison: Comparison, depth: int | None) -> Iterator[Element]:
    if any(figures is not None for line in comparison.scopes for figures in line.figures):
        shallow = [line for line in comparison.scopes if depth is None or _depth(line.scope) <= depth]
        held = _scopes(comparison.names, shallow, "held from forward to backward", lambda row: row.held_bytes)
        at_peak = _scopes(comparison.names, shallow, "at the peak", lambda row: row.peak_bytes)
        yield Section(title="By scope", parts=(held, at_peak), folded=True)
    for peak in comparison.peaks:
        yield _peak(comparison.names[0], peak, folded=len(comparison.peaks) > 1)
    if comparison.recomputed:
        yield _recomputed(comparison)


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
        yield "against the first", signed_bytes(made.total_bytes - first.total_bytes, zero="0 B")
    yield "arguments", format_bytes(made.argument_bytes)
    yield "temporaries", format_bytes(made.temp_bytes)
    if made.memory is not None:
        yield "alive at the peak", format_bytes(made.memory.peak_bytes)
    if made.host_bytes:
        yield "host", format_bytes(made.host_bytes)
    if made.step_s:
        yield "step (est.)", format_seconds(made.estimated_step_s)
    position = comparison.versions.index(version)
    runs = sum(op.runs[position] for op in comparison.recomputed)
    if runs:
        yield "recomputed", f"{runs} kernels"
    if version.name in comparison.frontier:
        yield "frontier", "yes"


def _scopes(
    names: Sequence[str], lines: Sequence[ScopeFigures], words: str, figure: Callable[[ScopeMemory], int]
) -> Table | Text:
    """One row a scope of which the versions differ, largest difference first; folded layers are added up."""
    groups = fold_layers(lines, scope=lambda line: line.scope, alike=lambda _: None)
    found = [(_bytes_of(group.items, figure), group) for group in groups]
    differing = [(sizes, group) for sizes, group in found if len(set(sizes)) > 1]
    same = len(found) - len(differing)
    if not differing:
        return Text(text=f"Bytes {words}: the same in all versions, for each of {same} scopes.")
    differing.sort(key=lambda each: -max(abs(size - each[0][0]) for size in each[0]))
    headings = (*(f">{name}" for name in names), *(f">{name} - {names[0]}" for name in names[1:]))
    return Table(
        title=f"Bytes {words}",
        columns=columns("scope", "layers", *headings),
        rows=tuple(_scope_row(sizes, group) for sizes, group in differing),
        notes=(f"{same} scopes take the same in all versions.",) if same else (),
        compact_rows=_SCOPE_ROWS,
        rest=f"and {len(differing) - _SCOPE_ROWS} more scopes",
    )


def _bytes_of(lines: Sequence[ScopeFigures], figure: Callable[[ScopeMemory], int]) -> tuple[int, ...]:
    """For each version the sum over lines."""
    versions = zip(*(line.figures for line in lines), strict=True)
    return tuple(sum(figure(row) for row in rows if row is not None) for rows in versions)


def _scope_row(sizes: tuple[int, ...], group: Layers[ScopeFigures]) -> tuple[str, ...]:
    changes = (signed_bytes(size - sizes[0], zero="0 B") for size in sizes[1:])
    return group.scope or "full step", layer_ranges(sorted(group.layers)), *map(format_bytes, sizes), *changes


def _depth(scope: str) -> int:
    return scope.count("/") + 1 if scope else 0


def _peak(first: str, peak: PeakChange, *, folded: bool) -> Section:
    went_bytes = sum(change.change_bytes for change in peak.went)
    came_bytes = sum(change.change_bytes for change in peak.came)
    title = (
        f"At the peak, from {first} to {peak.name}: {signed_bytes(went_bytes + came_bytes, zero='0 B')}"
        f" ({format_bytes(-went_bytes)} went, {format_bytes(came_bytes)} came)"
    )
    kinds = (("Went", peak.went), ("Came", peak.came))
    tables = [_changes(f"{word} ({len(changes)} kinds)", changes) for word, changes in kinds if changes]
    nothing = Text(text="The same buffers are alive.")
    return Section(title=title, parts=tuple(tables) or (nothing,), folded=folded)


def _changes(title: str, changes: tuple[BufferChange, ...]) -> Table:
    def alike(change: BufferChange) -> tuple[object, ...]:
        b = change.buffer
        return b.op, b.dtype, b.shape, b.part, b.role, b.size_bytes, change.before, change.after

    return layer_table(
        changes,
        ("buffer", "part", "role", ">each", ">before", ">after", ">change"),
        _change_cells,
        scope=lambda change: change.buffer.scope,
        alike=alike,
        title=title,
        shown=_CHANGE_ROWS,
        rest=lambda count, size_bytes: f"and {count} more, {signed_bytes(size_bytes, zero='0 B')}",
    )


def _change_cells(group: Layers[BufferChange]) -> tuple[int | str, ...]:
    buffer, size_bytes = group.items[0].buffer, sum(change.change_bytes for change in group.items)
    return (
        size_bytes,
        array_text(buffer.dtype, buffer.shape, buffer.op),
        str(buffer.part),
        role_text(buffer),
        format_bytes(buffer.size_bytes),
        str(sum(change.before for change in group.items)),
        str(sum(change.after for change in group.items)),
        signed_bytes(size_bytes, zero="0 B"),
    )


def _recomputed(comparison: Comparison) -> Section:
    table = layer_table(
        comparison.recomputed,
        ("op", "by", *(f">{name}" for name in comparison.names)),
        _recomputed_cells,
        scope=lambda op: op.scope,
        alike=lambda op: (op.op, op.by_xla),
        shown=_CHANGE_ROWS,
        notes=("Kernels that run a second time in one step, trip counts of loops included.",),
    )
    return Section(title="Recomputed", parts=(table,), folded=True)


def _recomputed_cells(group: Layers[RecomputedOp]) -> tuple[int | str, ...]:
    first = group.items[0]
    runs = [sum(counts) for counts in zip(*(op.runs for op in group.items), strict=True)]
    return max(runs), first.op, "XLA itself" if first.by_xla else "the step", *map(str, runs)


### Verdicts


def verdicts_report(verdicts: Verdicts) -> Section:
    """Report of the bytes and seconds that each rule or name is worth."""
    host = f", host {format_bytes(verdicts.host_bytes)}" if verdicts.host_bytes else ""
    total = (
        f"With all of them {format_bytes(verdicts.total_bytes)}{host}, {verdicts.flops / 1e9:.3g} GFLOP and"
        f" {format_seconds(verdicts.step_s)} a step (estimated) on {verdicts.target}; {verdicts.compiles} programs were"
        " compiled. Changes are with the row less without it, beside all others."
    )
    headings = columns("rule or name", "verdict", ">values", ">memory", ">host", ">GFLOP", ">step", "why")
    table = Table(columns=headings, rows=tuple(map(_verdict_row, verdicts.verdicts)))
    return Section(title=f'{verdicts.step} under "{verdicts.policy}"', parts=(Text(text=total), table))


def _verdict_row(verdict: Verdict) -> tuple[str, ...]:
    return (
        verdict.subject,
        verdict.word,
        f"{verdict.value_count} ({format_bytes(verdict.value_bytes)})",
        signed(verdict.bytes_change, format_bytes),
        signed(verdict.host_bytes_change, format_bytes),
        signed(verdict.flops_change, lambda flops: f"{flops / 1e9:.3g}"),
        signed(verdict.step_s_change, format_seconds),
        verdict.why,
    )


### For other programs


def to_csv(comparison: Comparison) -> str:
    """All figures, one a row, under the names of `jaxckpt.comparison.Row`."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=list(Row.__annotations__), lineterminator="\n")
    writer.writeheader()
    writer.writerows(comparison_rows(comparison))
    return stream.getvalue()


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """Everything but the versions' memory maps, as numbers, texts and lists: one JSON object."""
    return {
        "versions": [
            {
                "name": version.name,
                "total_bytes": version.footprint.total_bytes,
                "host_bytes": version.footprint.host_bytes,
                "peak_bytes": version.footprint.memory.peak_bytes if version.footprint.memory else None,
                "footprint": version.footprint.to_dict(),
            }
            for version in comparison.versions
        ],
        "scopes": [dataclasses.asdict(line) for line in comparison.scopes],
        "peaks": [
            {"name": peak.name, "went": _change_data(peak.went), "came": _change_data(peak.came)}
            for peak in comparison.peaks
        ],
        "recomputed": [dataclasses.asdict(op) for op in comparison.recomputed],
        "frontier": list(comparison.frontier),
        "notes": list(comparison.notes),
    }


def _change_data(changes: tuple[BufferChange, ...]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(change) | {"change_bytes": change.change_bytes} for change in changes]
