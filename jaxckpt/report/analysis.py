"""An analysis as a report: which scopes leave what for the backward.

Read after `rows`.
"""

from jaxckpt._units import format_bytes, format_seconds
from jaxckpt.ir.layers import Layers
from jaxckpt.planner import Analysis, ScopeResiduals
from jaxckpt.report.rows import array_text, layer_table, short_source
from jaxckpt.report.tree import Section, Table, Text, columns

_MOST_ROWS = 24


def analysis_report(analysis: Analysis, *, depth: int | None = None) -> Section:
    """Totals and the residuals by scope, equal layers folded; scopes below a depth are added up."""
    table = layer_table(
        [row for row in _cut(analysis.scopes, depth) if row.residual_count or row.kept_bytes],
        (">residuals", ">kept", ">all layers", ">recompute", "largest", "made at"),
        _cells,
        scope=lambda row: row.scope,
        alike=lambda row: (row.residual_count, row.kept_bytes),
        title="Residuals by scope",
        shown=_MOST_ROWS,
    )
    return Section(
        title=f"{analysis.step}: {analysis.op_count} ops", parts=(_totals(analysis), table, _notes(analysis))
    )


def _totals(analysis: Analysis) -> Table:
    return Table(
        columns=columns("", ">"),
        rows=(
            ("arguments", format_bytes(analysis.argument_bytes)),
            ("arrays closed over", format_bytes(analysis.constant_bytes)),
            ("kept from forward to backward", format_bytes(analysis.kept_bytes)),
            ("  were each residual an array", format_bytes(analysis.residual_bytes)),
            ("predicted total, nothing recomputed", format_bytes(analysis.unplanned_bytes)),
            ("predicted total, everything recomputed", format_bytes(analysis.smallest_bytes)),
            (f"predicted step on {analysis.target}", format_seconds(analysis.unplanned_s)),
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


def _cells(group: Layers[ScopeResiduals]) -> tuple[int | str, ...]:
    first, largest = group.items[0], group.items[0].largest
    total_bytes = sum(row.kept_bytes for row in group.items)
    return (
        total_bytes,
        str(first.residual_count),
        format_bytes(first.kept_bytes),
        format_bytes(total_bytes),
        format_seconds(first.recompute_s),
        array_text(largest.dtype, largest.shape, largest.name or largest.primitive) if largest else "",
        short_source(largest.source) if largest else "",
    )


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
