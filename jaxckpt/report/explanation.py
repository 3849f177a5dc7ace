"""An explanation as a report: who decided what about which values, equal layers said once.

Read after `rows`.
"""

from jaxckpt._units import format_bytes, format_seconds
from jaxckpt.ir.layers import Layers
from jaxckpt.planner import Explained, Explanation
from jaxckpt.report.rows import array_text, layer_table
from jaxckpt.report.tree import Section, Text

_MOST_ROWS = 40


def explanation_report(explanation: Explanation) -> Section:
    """Values by who decided about them."""
    table = layer_table(
        explanation.values,
        ("value", ">all layers", "decided by", "happens", "why", "overruled"),
        _cells,
        scope=lambda each: each.value.scope,
        alike=_kind,
        shown=_MOST_ROWS,
    )
    totals = (
        f"Predicted total {format_bytes(explanation.predicted_bytes)}, with everything saved"
        f" {format_bytes(explanation.unplanned_bytes)}; {format_seconds(explanation.recompute_s)} of work runs again."
        " Nothing was compiled."
    )
    title = f'{explanation.step} under "{explanation.policy}"'
    return Section(title=title, parts=(Text(text=totals), table))


def _kind(each: Explained) -> tuple[object, ...]:
    value = each.value
    return value.name, value.primitive, value.shape, value.dtype, each.by, each.carried_out, each.why, each.overruled


def _cells(group: Layers[Explained]) -> tuple[int | str, ...]:
    first, in_layer = group.items[0], len(group.members[0])
    value = first.value
    array = array_text(value.dtype, value.shape, value.name or value.primitive)
    return (
        0,  # in the order of the step
        f"{in_layer} x {array}" if in_layer > 1 else array,
        format_bytes(sum(each.value.size_bytes for each in group.items)),
        first.by,
        "left to the compiler" if first.carried_out is None else type(first.carried_out).__name__.lower(),
        first.why,
        "; ".join(first.overruled),
    )
