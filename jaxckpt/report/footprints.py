"""Footprints side by side: what several versions of a step take."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jaxckpt._units import format_bytes, format_seconds
from jaxckpt.compiler import Footprint
from jaxckpt.ir import Prediction
from jaxckpt.report.tree import Table, columns


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledFootprint:
    """One version of a step: its name, what it takes, and what was expected of it, if anything was."""

    name: str
    footprint: Footprint
    prediction: Prediction | None = None
    budget_bytes: int | None = None


def footprints_report(title: str, versions: Iterable[LabelledFootprint], *, notes: tuple[str, ...] = ()) -> Table:
    """One row a version; a column that says nothing of any of them is left out."""
    rows = [dict(_cells(version)) for version in versions]
    shown = [heading for heading in _HEADINGS if any(row.get(heading) for row in rows)]
    return Table(
        title=title,
        columns=columns(*(heading if heading == "version" else f">{heading}" for heading in shown)),
        rows=tuple(tuple(row.get(heading, "") for heading in shown) for row in rows),
        notes=notes,
    )


_HEADINGS = (
    "version",
    "budget",
    "total",
    "predicted",
    "off by",
    "arguments",
    "temp",
    "host",
    "step (est.)",
    "recompute",
    "compile",
)


def _cells(version: LabelledFootprint) -> Iterator[tuple[str, str]]:
    made, prediction = version.footprint, version.prediction
    yield "version", version.name
    if version.budget_bytes is not None:
        yield "budget", format_bytes(version.budget_bytes)
    yield "total", format_bytes(made.total_bytes)
    yield "arguments", format_bytes(made.argument_bytes)
    yield "temp", format_bytes(made.temp_bytes)
    if made.host_bytes:
        yield "host", format_bytes(made.host_bytes)
    if made.compile_s:
        yield "compile", format_seconds(made.compile_s)
    if prediction is not None:
        yield "predicted", format_bytes(prediction.total_bytes)
        yield "off by", f"{100 * (prediction.total_bytes / made.total_bytes - 1):+.1f}%"
        yield "step (est.)", format_seconds(prediction.step_s)
        yield "recompute", format_seconds(prediction.recompute_s) if prediction.recompute_s else "none"
