"""A frontier as a report: the plans from the smallest to the fastest, and the picture.

Read after `tree`.
"""

from collections.abc import Iterator

from jaxckpt._units import format_bytes, format_seconds
from jaxckpt.ir import Recompute
from jaxckpt.planner import Frontier, FrontierPoint
from jaxckpt.report.tree import Element, Point, Scatter, Section, Table, Text, columns


def frontier_report(frontier: Frontier) -> Section:
    """Memory and time of every compiled plan, against the step as it is; and what is expected between them."""
    parts: tuple[Element, ...] = (_table(frontier), _picture(frontier), Text(text=_notes(frontier)))
    return Section(title=f"Memory against time: {frontier.step} on {frontier.target}", parts=parts)


def _table(frontier: Frontier) -> Table:
    return Table(
        columns=columns(">total", ">of the step as it is", ">step (est.)", ">slower by", ">kept", ">values recomputed"),
        rows=tuple(_row(frontier, point) for point in frontier.points),
        notes=tuple(_dropped(frontier)),
    )


def _row(frontier: Frontier, point: FrontierPoint) -> tuple[str, ...]:
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


def _dropped(frontier: Frontier) -> Iterator[str]:
    if frontier.dropped:
        yield f"{frontier.dropped} more were compiled and are beaten by one of these: a smaller plan that is faster."


def _notes(frontier: Frontier) -> str:
    between = " Small points were not compiled: they are what the model expects there." if frontier.between else ""
    return f"Times are estimates from the {frontier.compiles} compiled programs, not measurements.{between}"


def _picture(frontier: Frontier) -> Scatter:
    compiled = (_of_picture(_share(frontier, p), p.total_bytes, p.step_s, True) for p in frontier.points)
    expected = (_of_picture("", p.total_bytes, p.step_s, False) for p in frontier.between)
    return Scatter(
        title="Estimated time against memory",
        x_heading="compiled total",
        y_heading="estimated step",
        points=(*compiled, *expected),
    )


def _of_picture(name: str, total_bytes: int, step_s: float, on_frontier: bool) -> Point:
    return Point(
        name=name,
        x=float(total_bytes),
        y=step_s,
        x_text=format_bytes(total_bytes),
        y_text=format_seconds(step_s),
        on_frontier=on_frontier,
    )
