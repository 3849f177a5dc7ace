"""An explanation as a report: who decided what about which values, equal layers said once.

Read after `tree`.
"""

from collections.abc import Iterator

from jaxckpt._units import format_bytes, format_seconds
from jaxckpt.ir.layers import fold_layers, layer_ranges
from jaxckpt.planner import Explained, Explanation
from jaxckpt.report.tree import Section, Table, Text, columns

_MOST_ROWS = 40


def explanation_report(explanation: Explanation) -> Section:
    """Values by who decided about them.

    Args:
      explanation: The data.
    """
    table = Table(
        title="",
        columns=columns("scope", "layers", "value", ">all layers", "decided by", "happens", "why", "overruled"),
        rows=tuple(_rows(explanation)),
        compact_rows=_MOST_ROWS,
    )
    totals = (
        f"Predicted total {format_bytes(explanation.predicted_bytes)}, with everything saved"
        f" {format_bytes(explanation.unplanned_bytes)}; {format_seconds(explanation.recompute_s)} of work runs again."
        " Nothing was compiled."
    )
    title = f'{explanation.step} under "{explanation.policy}"'
    return Section(title=title, parts=(Text(text=totals), table))


def _rows(explanation: Explanation) -> Iterator[tuple[str, ...]]:
    def alike(each: Explained) -> tuple[object, ...]:
        value = each.value
        return (
            value.name,
            value.primitive,
            value.shape,
            value.dtype,
            each.by,
            each.carried_out,
            each.why,
            each.overruled,
        )

    for group in fold_layers(explanation.values, scope=lambda each: each.value.scope, alike=alike):
        first = group.items[0]
        value = first.value
        count = len(group.members[0])
        yield (
            group.scope or "/",
            layer_ranges(sorted(group.layers)),
            (f"{count} x " if count > 1 else "")
            + f"{value.dtype}[{','.join(map(str, value.shape))}] {value.name or value.primitive}",
            format_bytes(sum(each.value.size_bytes for each in group.items)),
            first.by,
            "left to the compiler" if first.carried_out is None else type(first.carried_out).__name__.lower(),
            first.why,
            "; ".join(first.overruled),
        )
