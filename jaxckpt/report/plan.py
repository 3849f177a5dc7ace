"""Reports of decisions about values: a plan and a check of one, an explanation, a policy; and an analysis before any.

Read after `rows`.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from jaxckpt._units import format_bytes, format_seconds
from jaxckpt.ir import Recompute, Save
from jaxckpt.ir.layers import Layers
from jaxckpt.ir.scope import scope_at_depth
from jaxckpt.planner import (
    Analysis,
    Described,
    Explained,
    ExplainedRegion,
    Explanation,
    Plan,
    PlanCheck,
    ScopeResiduals,
)
from jaxckpt.policy import Policy, Rule
from jaxckpt.report.rows import array_text, layer_table, more_kinds, short_source
from jaxckpt.report.tree import Element, Section, Table, Text, columns

_MOST_ROWS = 24
_MOST_EXPLAINED = 40


### Plans


def plan_report(plan: Plan) -> Section:
    """The summary of a plan, its decisions folded over layers, and the compiles that led to it."""
    summary = Table(columns=columns("", ">"), rows=tuple(_summary_rows(plan)))
    parts: list[Element] = [summary, *(Text(text=f"Note: {note}") for note in plan.notes)]
    if plan.decisions:
        parts += [_in_memory(plan), _recomputed(plan)]
    if plan.attempts:
        parts.append(Section(title="Compiles", parts=(_attempts(plan),), folded=True))
    return Section(title=f"Plan for {plan.target} ({plan.strategy})", parts=tuple(parts))


def plan_check_report(checked: PlanCheck) -> Section:
    """A plan of before: whether it is valid here, why not, what changed, and its figures now."""
    title = "The plan is valid here" if checked.ok else "The plan is not valid here"
    sentences = (*(f"Reason: {problem}" for problem in checked.problems), *checked.changes)
    parts: list[Element] = [Text(text=sentence) for sentence in sentences]
    if checked.total_bytes is not None:
        parts.append(Table(columns=columns("", ">"), rows=tuple(_summary_rows(checked.plan))))
    return Section(title=title, parts=tuple(parts))


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
        yield "  of these saved from forward to backward", format_bytes(plan.predicted.saved_bytes)
        yield "predicted step, by the model", format_seconds(plan.predicted.step_s)
        yield "  of these recomputation", format_seconds(plan.predicted.recompute_s)
        if plan.predicted.gap is not None:
            yield "  no plan is faster by more than", f"{plan.predicted.gap:.1%}"
    for chunk in plan.row_chunks:
        yield f"rows of value {chunk.value} (dimension {chunk.dimension})", f"in {chunk.pieces} pieces"
    if plan.host_arguments:
        yield "arguments in host memory", f"{len(plan.host_arguments)}"
    for split in plan.loop_splits:
        yield f"loop {split.loop} split", f"{' + '.join(map(str, split.lengths))} iterations"
    for tiling in plan.loop_tilings:
        yield f"loop {tiling.loop} tiled", f"{tiling.outer} x {tiling.inner} iterations"


def _in_memory(plan: Plan) -> Table:
    """The values that are not recomputed; the title has the participles of their decisions."""
    listed = [d for d in plan.described if not isinstance(plan.decisions[d.value], Recompute)]
    participles = sorted({plan.decisions[d.value].participle for d in listed}) or [Save.participle]

    def alike(d: Described) -> tuple[object, ...]:
        return d.primitive, d.name, d.shape, d.dtype, d.source, plan.decisions[d.value]

    def cells(group: Layers[Described]) -> tuple[int | str, ...]:
        first, total_bytes = group.items[0], sum(d.size_bytes for d in group.items)
        each = format_bytes(first.size_bytes)
        return total_bytes, _array(first), each, format_bytes(total_bytes), short_source(first.source)

    return layer_table(
        listed,
        ("value", ">each", ">all", "source"),
        cells,
        scope=lambda d: d.scope,
        alike=alike,
        title=" and ".join(participles).capitalize(),
        shown=_MOST_ROWS,
        rest=more_kinds,
    )


def _array(value: Described) -> str:
    return array_text(value.dtype, value.shape, value.name or value.primitive)


def _recomputed(plan: Plan) -> Text:
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
                f"{100 * (attempt.predicted_bytes / max(1, attempt.measured_bytes) - 1):+.1f}%",
                format_seconds(attempt.compile_s) if attempt.compile_s else "known",
            )
            for attempt in plan.attempts
        ),
    )


### Explanations


def explanation_report(explanation: Explanation) -> Section:
    """Regions with what is saved around them, and values by who decided about them; equal layers said once."""
    is_sharded = any(each.sharding for each in explanation.values)
    table = layer_table(
        explanation.values,
        ("value", ">all layers", *(["sharding"] if is_sharded else []), "decided by", "happens", "why", "overruled"),
        partial(_explained_cells, is_sharded=is_sharded),
        scope=lambda each: each.value.scope,
        alike=_explained_alike,
        shown=_MOST_EXPLAINED,
    )
    totals = (
        f"Predicted total {format_bytes(explanation.predicted_bytes)}, with everything saved"
        f" {format_bytes(explanation.unplanned_bytes)}; {format_seconds(explanation.recompute_s)} of work is"
        " recomputed. Nothing was compiled."
    )
    title = f'{explanation.step} under "{explanation.policy}"'
    regions = (_regions(explanation.regions),) if explanation.regions else ()
    return Section(title=title, parts=(Text(text=totals), *_raised(explanation), *regions, table))


def _regions(regions: Sequence[ExplainedRegion]) -> Table:
    has_mesh = any(region.mesh for region in regions)

    def cells(group: Layers[ExplainedRegion]) -> tuple[int | str, ...]:
        first = group.items[0]
        saved_bytes = sum(each.value.size_bytes for each in first.saved)
        row = (str(first.ops), ", ".join(map(_saved_text, first.saved)), format_bytes(saved_bytes))
        return (0, *row, first.mesh) if has_mesh else (0, *row)

    return layer_table(
        regions,
        (">ops", "saved at the boundary", ">bytes", *(["mesh"] if has_mesh else [])),
        cells,
        scope=lambda region: region.scope,
        alike=lambda region: (region.ops, tuple(map(_saved_text, region.saved)), region.mesh),
        title="Regions that are recomputed",
        shown=_MOST_ROWS,
    )


def _saved_text(each: Explained) -> str:
    return f"{_array(each.value)} {each.sharding}".rstrip()


def _raised(explanation: Explanation) -> tuple[Text, ...]:
    """A sentence where the policy takes more memory than the step as written; nothing else."""
    more_bytes = explanation.predicted_bytes - explanation.unplanned_bytes
    if more_bytes <= 0:
        return ()
    return (
        Text(
            text=f"This policy takes {format_bytes(more_bytes)} more than the step as written: what is recomputed reads"
            " more bytes than it frees, or a value is sharded in a way that the step then has to undo."
        ),
    )


def _explained_alike(each: Explained) -> tuple[object, ...]:
    named = each.value.name, each.value.primitive, _array(each.value)
    return *named, each.by, each.carried_out, each.why, each.overruled, each.sharding


def _explained_cells(group: Layers[Explained], *, is_sharded: bool) -> tuple[int | str, ...]:
    first, in_layer = group.items[0], len(group.members[0])
    array = _array(first.value)
    return (
        0,  # in the order of the step
        f"{in_layer} x {array}" if in_layer > 1 else array,
        format_bytes(sum(each.value.size_bytes for each in group.items)),
        *([first.sharding] if is_sharded else []),
        first.by,
        "left to the compiler" if first.carried_out is None else type(first.carried_out).__name__.lower(),
        first.why,
        "; ".join(first.overruled),
    )


### Policies


def policy_report(policy: Policy) -> Section:
    """Rules in order, the first that matches decides; then the rest."""
    words = [Text(text=text) for text in (policy.models and f"For {policy.models}.", policy.about.strip()) if text]
    rest = ("", "everything else", policy.default, "", "")
    table = Table(
        columns=columns(">rule", "matches", "decision", "strength", "why"),
        rows=(*(_rule_row(number, rule) for number, rule in enumerate(policy.rules, 1)), rest),
    )
    return Section(title=f"Policy {policy.name}", parts=(*words, table))


def _rule_row(number: int, rule: Rule) -> tuple[str, ...]:
    given = [(each.name, getattr(rule.match, each.name)) for each in fields(rule.match)]
    match = ", ".join(f"{key} = {_condition(key, value)}" for key, value in given if value is not None)
    return str(number), match or "everything", type(rule.decision).__name__.lower(), rule.strength, rule.note


def _condition(key: str, value: Any) -> str:
    return format_bytes(value) if key.endswith("_bytes") else repr(value)


### Analyses


def analysis_report(analysis: Analysis, *, depth: int | None = None) -> Section:
    """Totals and the residuals by scope, equal layers folded; scopes below a depth are added up."""
    totals = (
        ("arguments", format_bytes(analysis.argument_bytes)),
        ("arrays closed over", format_bytes(analysis.constant_bytes)),
        ("saved from forward to backward", format_bytes(analysis.kept_bytes)),
        ("  were each residual an array", format_bytes(analysis.residual_bytes)),
        ("predicted total, nothing recomputed", format_bytes(analysis.unplanned_bytes)),
        ("predicted total, everything recomputed", format_bytes(analysis.smallest_bytes)),
        (f"predicted step on {analysis.target}", format_seconds(analysis.unplanned_s)),
    )
    table = layer_table(
        [row for row in _cut(analysis.scopes, depth) if row.residual_count or row.kept_bytes],
        (">residuals", ">saved", ">all layers", ">recompute", "largest", "source"),
        _residual_cells,
        scope=lambda row: row.scope,
        alike=lambda row: (row.residual_count, row.kept_bytes),
        title="Residuals by scope",
        shown=_MOST_ROWS,
    )
    parts = (Table(columns=columns("", ">"), rows=totals), table, Text(text=" ".join(_analysis_notes(analysis))))
    return Section(title=f"{analysis.step}: {analysis.op_count} ops", parts=parts)


def _analysis_notes(analysis: Analysis) -> Iterator[str]:
    yield "Predictions; nothing was compiled."
    if analysis.phases_source == "structure":
        yield "JAX left no marks of differentiation here: forward and backward were told apart by structure."
    if analysis.unpriced:
        listed = ", ".join(f"{name} ({count})" for name, count in analysis.unpriced)
        yield f"Priced by traffic alone, since nobody knows their work: {listed}."


def _residual_cells(group: Layers[ScopeResiduals]) -> tuple[int | str, ...]:
    first, largest = group.items[0], group.items[0].largest
    total_bytes = sum(row.kept_bytes for row in group.items)
    return (
        total_bytes,
        str(first.residual_count),
        format_bytes(first.kept_bytes),
        format_bytes(total_bytes),
        format_seconds(first.recompute_s),
        _array(largest) if largest else "",
        short_source(largest.source) if largest else "",
    )


def _cut(scopes: tuple[ScopeResiduals, ...], depth: int | None) -> list[ScopeResiduals]:
    """Scopes cut to a depth, those that become equal added up."""
    if depth is None:
        return list(scopes)
    groups: defaultdict[str, list[ScopeResiduals]] = defaultdict(list)
    for row in scopes:
        groups[scope_at_depth(row.scope, depth)].append(row)
    return [_added_up(scope, rows) for scope, rows in groups.items()]


def _added_up(scope: str, rows: list[ScopeResiduals]) -> ScopeResiduals:
    summed = ("residual_count", "residual_bytes", "kept_bytes", "recompute_s", "reader_count")
    sums: dict[str, Any] = {name: sum(getattr(row, name) for row in rows) for name in summed}
    largest = max((row.largest for row in rows if row.largest), key=lambda d: d.size_bytes, default=None)
    return ScopeResiduals(scope=scope, largest=largest, **sums)
