"""An analysis as a report: which scopes leave what for the backward.

Read after `tree`.
"""

from collections.abc import Iterator

from jaxckpt._units import format_bytes, format_seconds
from jaxckpt.ir.layers import fold_layers, layer_ranges
from jaxckpt.planner import Analysis, Described, ScopeResiduals
from jaxckpt.report.tree import Section, Table, Text, columns

_MOST_ROWS = 24


def analysis_report(analysis: Analysis, *, depth: int | None = None) -> Section:
    """Totals and the residuals by scope, equal layers folded.

    Args:
      analysis: The data.
      depth: Scopes are shown to this depth, what lies deeper is added up; None shows all.
    """
    rows = sorted(_rows(analysis, depth), key=lambda row: -row[0])
    shown = [row for _, row in rows if row[2] != "0" or row[3] != "0 B"]
    table = Table(
        title="Residuals by scope",
        columns=columns("scope", "layers", ">residuals", ">kept", ">all layers", ">recompute", "largest", "made at"),
        rows=tuple(shown),
        compact_rows=_MOST_ROWS,
    )
    return Section(
        title=f"{analysis.step}: {analysis.op_count} ops", parts=(_totals(analysis), table, _notes(analysis))
    )


def _totals(analysis: Analysis) -> Table:
    return Table(
        title="",
        columns=columns("", ">"),
        rows=(
            ("arguments", format_bytes(analysis.argument_bytes)),
            ("arrays closed over", format_bytes(analysis.constant_bytes)),
            ("kept from forward to backward", format_bytes(analysis.kept_bytes)),
            ("  were each residual an array", format_bytes(analysis.residual_bytes)),
            ("predicted total, nothing recomputed", format_bytes(analysis.unplanned_bytes)),
            ("predicted total, everything recomputed", format_bytes(analysis.smallest_bytes)),
            (f"estimated step on {analysis.target}", format_seconds(analysis.unplanned_s)),
        ),
    )


def _notes(analysis: Analysis) -> Text:
    notes = ["Predictions; nothing was compiled."]
    if analysis.phases_source == "structure":
        notes.append("JAX left no marks of differentiation here: forward and backward were told apart by structure.")
    if analysis.unpriced:
        listed = ", ".join(f"{name} ({count})" for name, count in analysis.unpriced)
        notes.append(f"Priced by traffic alone, since nobody knows their work: {listed}.")
    return Text(text=" ".join(notes))


def _rows(analysis: Analysis, depth: int | None) -> Iterator[tuple[int, tuple[str, ...]]]:
    def alike(row: ScopeResiduals) -> tuple[object, ...]:
        return row.residual_count, row.kept_bytes

    cut = _cut(analysis.scopes, depth)
    for group in fold_layers(cut, scope=lambda row: row.scope, alike=alike):
        first = group.items[0]
        total_bytes = sum(row.kept_bytes for row in group.items)
        yield (
            total_bytes,
            (
                group.scope or "/",
                layer_ranges(sorted(group.layers)),
                str(first.residual_count),
                format_bytes(first.kept_bytes),
                format_bytes(total_bytes),
                format_seconds(first.recompute_s),
                _value(first.largest),
                first.largest.source.rsplit("/", 1)[-1] if first.largest else "",
            ),
        )


def _value(described: Described | None) -> str:
    if described is None:
        return ""
    return f"{described.dtype}[{','.join(map(str, described.shape))}] {described.name or described.primitive}"


def _cut(scopes: tuple[ScopeResiduals, ...], depth: int | None) -> list[ScopeResiduals]:
    """Scopes cut to a depth, those that become equal added up."""
    if depth is None:
        return list(scopes)
    groups: dict[str, list[ScopeResiduals]] = {}
    for row in scopes:
        groups.setdefault("/".join(row.scope.split("/")[:depth]), []).append(row)
    return [
        ScopeResiduals(
            scope=scope,
            residual_count=sum(row.residual_count for row in rows),
            residual_bytes=sum(row.residual_bytes for row in rows),
            kept_bytes=sum(row.kept_bytes for row in rows),
            largest=max((row.largest for row in rows if row.largest), key=lambda d: d.size_bytes, default=None),
            recompute_s=sum(row.recompute_s for row in rows),
            reader_count=sum(row.reader_count for row in rows),
        )
        for scope, rows in groups.items()
    ]
