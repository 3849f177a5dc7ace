"""A plan as a report: what was asked, what it takes, what happens to which values.

Read after `rows`.
"""

from collections.abc import Iterator

from jaxckpt._units import format_bytes, format_seconds
from jaxckpt.ir import Recompute
from jaxckpt.ir.layers import Layers
from jaxckpt.planner import Described, Plan, PlanCheck
from jaxckpt.report.rows import array_text, layer_table, more_kinds, short_source
from jaxckpt.report.tree import Element, Section, Table, Text, columns

_MOST_ROWS = 24


def plan_report(plan: Plan) -> Section:
    """The summary of a plan, its decisions folded over layers, and the compiles that led to it."""
    summary = Table(columns=columns("", ">"), rows=tuple(_summary_rows(plan)))
    parts: list[Element] = [summary, *(Text(text=f"Note: {note}") for note in plan.notes)]
    if plan.decisions:
        parts += [_kept(plan), _dropped(plan)]
    if plan.attempts:
        parts.append(Section(title="Compiles", parts=(_attempts(plan),), folded=True))
    return Section(title=f"Plan for {plan.target} ({plan.strategy})", parts=tuple(parts))


def plan_check_report(checked: PlanCheck) -> Section:
    """A plan of before: whether it is valid here, why not, what changed, and its figures now."""
    title = "The plan is valid here" if checked.ok else "The plan is not valid here"
    reasons = (Text(text=f"Reason: {problem}") for problem in checked.problems)
    changes = (Text(text=change) for change in checked.changes)
    rows = () if checked.total_bytes is None else tuple(_summary_rows(checked.plan))
    summary = (Table(columns=columns("", ">"), rows=rows),) if rows else ()
    return Section(title=title, parts=(*reasons, *changes, *summary))


def _summary_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.budget_bytes is not None:
        yield "budget", format_bytes(plan.budget_bytes)
    if plan.footprint is not None:
        yield "compiled total", format_bytes(plan.footprint.total_bytes)
        yield "  of these temporaries", format_bytes(plan.footprint.temp_bytes)
    if plan.estimated_step_s:
        yield "estimated step, of the compiled program", format_seconds(plan.estimated_step_s)
    if plan.prediction is not None:
        yield "predicted total", format_bytes(plan.predicted.total_bytes)
        yield "  of these kept from forward to backward", format_bytes(plan.predicted.saved_bytes)
        yield "predicted step, by the model", format_seconds(plan.predicted.step_s)
        yield "  of these recomputation", format_seconds(plan.predicted.recompute_s)
        if plan.predicted.gap is not None:
            yield "  the best plan saves at most", f"{plan.predicted.gap:.1%}"
    for split in plan.loop_splits:
        yield f"loop {split.loop} split", f"{' + '.join(map(str, split.lengths))} iterations"
    for tiling in plan.loop_tilings:
        yield f"loop {tiling.loop} tiled", f"{tiling.outer} x {tiling.inner} iterations"


def _kept(plan: Plan) -> Table:
    def alike(d: Described) -> tuple[object, ...]:
        return d.primitive, d.name, d.shape, d.dtype, d.source, plan.decisions[d.value]

    return layer_table(
        [d for d in plan.described if not isinstance(plan.decisions[d.value], Recompute)],
        ("value", ">each", ">all", "made at"),
        _cells,
        scope=lambda d: d.scope,
        alike=alike,
        title="Kept",
        shown=_MOST_ROWS,
        rest=more_kinds,
    )


def _cells(group: Layers[Described]) -> tuple[int | str, ...]:
    first = group.items[0]
    total_bytes = sum(d.size_bytes for d in group.items)
    value = array_text(first.dtype, first.shape, first.name or first.primitive)
    return total_bytes, value, format_bytes(first.size_bytes), format_bytes(total_bytes), short_source(first.source)


def _dropped(plan: Plan) -> Text:
    dropped = [d for d in plan.described if isinstance(plan.decisions[d.value], Recompute)]
    size_bytes = sum(d.size_bytes for d in dropped)
    return Text(
        text=f"Recomputed: {len(dropped)} values, {format_bytes(size_bytes)} as arrays (many of them live only"
        " inside kernels).\n"
    )


def _attempts(plan: Plan) -> Table:
    return Table(
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
