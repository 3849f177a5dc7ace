"""A plan as a report: what was asked, what it takes, what happens to which values.

Read after `tree`.
"""

from collections.abc import Iterator

from jaxckpt._units import format_bytes, format_seconds
from jaxckpt.ir import Recompute
from jaxckpt.ir.layers import fold_layers, layer_ranges
from jaxckpt.planner import Described, Plan
from jaxckpt.report.tree import Element, Section, Table, Text, columns

_MOST_ROWS = 24


def plan_report(plan: Plan) -> Section:
    """The summary of a plan, its decisions folded over layers, and the compiles that led to it."""
    parts: list[Element] = [_summary(plan), *(Text(text=f"Note: {note}") for note in plan.notes)]
    if plan.decisions:
        parts += [_kept(plan), _dropped(plan)]
    if plan.attempts:
        parts.append(Section(title="Compiles", parts=(_attempts(plan),), folded=True))
    return Section(title=f"Plan for {plan.target} ({plan.strategy})", parts=tuple(parts))


def _summary(plan: Plan) -> Table:
    rows = list(_summary_rows(plan))
    return Table(title="", columns=columns("", ">"), rows=tuple(rows))


def _summary_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.budget_bytes is not None:
        yield "budget", format_bytes(plan.budget_bytes)
    if plan.footprint is not None:
        yield "compiled total", format_bytes(plan.footprint.total_bytes)
        yield "  of these temporaries", format_bytes(plan.footprint.temp_bytes)
    if plan.prediction is not None:
        yield "predicted total", format_bytes(plan.predicted.total_bytes)
        yield "kept from forward to backward", format_bytes(plan.predicted.saved_bytes)
        yield "estimated step", format_seconds(plan.predicted.step_s)
        yield "  of these recomputation", format_seconds(plan.predicted.recompute_s)
        if plan.predicted.gap is not None:
            yield "  the best plan saves at most", f"{plan.predicted.gap:.1%}"
    for each in plan.loop_splits:
        yield f"loop {each.loop} split", f"{' + '.join(map(str, each.lengths))} iterations"
    for each in plan.loop_tilings:
        yield f"loop {each.loop} tiled", f"{each.outer} x {each.inner} iterations"


def _kept(plan: Plan) -> Table:
    kept = [d for d in plan.described if not isinstance(plan.decisions[d.value], Recompute)]
    rows = sorted(_rows(plan, kept), key=lambda row: -row[0])
    small = rows[_MOST_ROWS:]
    return Table(
        title="Kept",
        columns=columns("scope", "layers", "value", ">each", ">all", "made at"),
        rows=tuple(row[1] for row in rows),
        compact_rows=_MOST_ROWS,
        rest=f"and {len(small)} more kinds, {format_bytes(sum(row[0] for row in small))}",
    )


def _rows(plan: Plan, described: list[Described]) -> Iterator[tuple[int, tuple[str, ...]]]:
    def alike(d: Described) -> tuple[object, ...]:
        return d.primitive, d.name, d.shape, d.dtype, d.source, plan.decisions[d.value]

    for group in fold_layers(described, scope=lambda d: d.scope, alike=alike):
        first, layers = group.items[0], layer_ranges(sorted(group.layers))
        total_bytes = sum(d.size_bytes for d in group.items)
        value = f"{first.dtype}[{','.join(map(str, first.shape))}] {first.name or first.primitive}"
        each = format_bytes(first.size_bytes)
        source = first.source.rsplit("/", 1)[-1]
        yield total_bytes, (group.scope or "/", layers, value, each, format_bytes(total_bytes), source)


def _dropped(plan: Plan) -> Text:
    dropped = [d for d in plan.described if isinstance(plan.decisions[d.value], Recompute)]
    size_bytes = sum(d.size_bytes for d in dropped)
    return Text(
        text=f"Recomputed: {len(dropped)} values, {format_bytes(size_bytes)} as arrays (many of them live only"
        " inside kernels).\n"
    )


def _attempts(plan: Plan) -> Table:
    return Table(
        title="",
        columns=columns("candidate", ">predicted", ">compiled", ">off by", ">compile time"),
        rows=tuple(
            (
                attempt.strategy,
                format_bytes(attempt.predicted_bytes),
                format_bytes(attempt.measured_bytes),
                f"{100 * (attempt.predicted_bytes / attempt.measured_bytes - 1):+.1f}%",
                format_seconds(attempt.compile_s) if attempt.compile_s else "known",
            )
            for attempt in plan.attempts
        ),
    )
