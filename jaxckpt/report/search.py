"""Searches as reports: the frontier of memory and time with its picture, and the batches that fit.

Read after `rows`.
"""

from jaxckpt._units import format_bytes, format_seconds
from jaxckpt.ir import Recompute
from jaxckpt.planner import BatchSearch, Frontier, FrontierPoint, TriedBatch
from jaxckpt.report.rows import memory_time_scatter
from jaxckpt.report.tree import Section, Table, Text, columns


def frontier_report(frontier: Frontier) -> Section:
    """Memory and time of every compiled plan, against the step as it is; and what is expected between them."""
    dropped = f"{frontier.dropped} more were compiled and are beaten by one of these: a smaller plan that is faster."
    table = Table(
        columns=columns(">total", ">of the step as it is", ">step (est.)", ">slower by", ">saved", ">recomputed"),
        rows=tuple(_point_row(frontier, point) for point in frontier.points),
        notes=(dropped,) if frontier.dropped else (),
    )
    compiled = ((_share(frontier, p), p.total_bytes, p.step_s, True) for p in frontier.points)
    expected = (("", p.total_bytes, p.step_s, False) for p in frontier.between)
    picture = memory_time_scatter("compiled total", (*compiled, *expected))
    between = " Small points were not compiled: they are what the model expects there." if frontier.between else ""
    notes = f"Times are estimates from the {frontier.compiles} compiled programs, not measurements.{between}"
    title = f"Memory against time: {frontier.step} on {frontier.target}"
    return Section(title=title, parts=(table, picture, Text(text=notes)))


def _point_row(frontier: Frontier, point: FrontierPoint) -> tuple[str, ...]:
    plan = point.plan
    slower = point.step_s / frontier.fastest.step_s - 1 if frontier.fastest.step_s else 0.0
    recomputed = sum(isinstance(decision, Recompute) for decision in plan.decisions.values())
    return (
        format_bytes(point.total_bytes),
        _share(frontier, point),
        format_seconds(point.step_s),
        f"{slower:.1%}",
        format_bytes(plan.predicted.saved_bytes) if plan.decisions else "everything",
        str(recomputed),
    )


def _share(frontier: Frontier, point: FrontierPoint) -> str:
    """Of the step as it is."""
    return f"{point.total_bytes / max(1, frontier.unplanned.total_bytes):.0%}"


def batches_report(search: BatchSearch) -> Section:
    """The two answers, the batches tried and how sure each figure is."""
    found = (("largest batch found", search.largest), ("highest throughput (est.)", search.fastest))
    answers = Table(
        columns=columns("", ">batch", ">compiled total", ">step (est.)", ">items/s (est.)"),
        rows=tuple((words, str(each.batch), *_figures(each)) for words, each in found),
    )
    tried = Table(
        title="Batches tried",
        columns=columns(">batch", "fits", "by", ">smallest total", ">planned total", ">step (est.)", ">items/s (est.)"),
        rows=tuple(map(_batch_row, search.tried)),
    )
    every = f" Only multiples of {search.multiples_of} were tried." if search.multiples_of > 1 else ""
    notes = (
        f"{search.compiles} programs were compiled. Times are estimates, from the compiled program where there is a"
        f" planned total and from the model elsewhere; they are not measurements. Batches by the"
        f" model were not compiled: one that it takes for too large may fit.{every}"
    )
    title = f"Batches of {search.step} in {format_bytes(search.budget_bytes)} on {search.target}"
    return Section(title=title, parts=(answers, tried, Text(text=notes)))


def _batch_row(each: TriedBatch) -> tuple[str, ...]:
    fits, by = "yes" if each.fits else "no", "compiler" if each.compiled else "model"
    return str(each.batch), fits, by, format_bytes(each.smallest_bytes), *_figures(each)


def _figures(each: TriedBatch) -> tuple[str, str, str]:
    """Total, seconds and items a second; "" for what is not known."""
    footprint = each.plan.footprint if each.plan is not None else None
    total = "" if footprint is None else format_bytes(footprint.total_bytes)
    return (total, format_seconds(each.step_s), f"{each.items_per_s:.4g}") if each.step_s else (total, "", "")
