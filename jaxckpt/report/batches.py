"""A search over batches as a report: the largest that fits, the fastest, and all that were looked at.

Read after `tree`.
"""

from jaxckpt._units import format_bytes, format_seconds
from jaxckpt.planner import BatchSearch, TriedBatch
from jaxckpt.report.tree import Element, Section, Table, Text, columns


def batches_report(search: BatchSearch) -> Section:
    """The two answers, the batches tried and how sure each figure is."""
    parts: tuple[Element, ...] = (_answers(search), _tried(search), Text(text=_notes(search)))
    budget = format_bytes(search.budget_bytes)
    return Section(title=f"Batches of {search.step} in {budget} on {search.target}", parts=parts)


def _answers(search: BatchSearch) -> Table:
    rows = (("largest batch that fits", search.largest), ("highest throughput (est.)", search.fastest))
    return Table(
        columns=columns("", ">batch", ">compiled total", ">step (est.)", ">items/s (est.)"),
        rows=tuple((words, str(each.batch), *_figures(each)) for words, each in rows),
    )


def _tried(search: BatchSearch) -> Table:
    return Table(
        title="Batches tried",
        columns=columns(">batch", "fits", "by", ">smallest total", ">planned total", ">step (est.)", ">items/s (est.)"),
        rows=tuple(map(_row, search.tried)),
    )


def _row(each: TriedBatch) -> tuple[str, ...]:
    fits, by = "yes" if each.fits else "no", "compiler" if each.compiled else "model"
    return str(each.batch), fits, by, format_bytes(each.smallest_bytes), *_figures(each)


def _figures(each: TriedBatch) -> tuple[str, str, str]:
    """Total, seconds and items a second; "" for what is not known."""
    footprint = each.plan.footprint if each.plan is not None else None
    total = "" if footprint is None else format_bytes(footprint.total_bytes)
    return (total, format_seconds(each.step_s), f"{each.items_per_s:.4g}") if each.step_s else (total, "", "")


def _notes(search: BatchSearch) -> str:
    every = f" Only multiples of {search.multiples_of} were tried." if search.multiples_of > 1 else ""
    return (
        f"{search.compiles} programs were compiled. Times are estimates, from the compiled program where there is a"
        f" planned total and from the model elsewhere; they are not measurements.{every}"
    )
