"""Footprints side by side: what several versions of a step take."""

from collections.abc import Iterable
from dataclasses import dataclass

from jaxckpt._units import format_bytes, format_seconds
from jaxckpt.ir import Prediction
from jaxckpt.measure import Footprint
from jaxckpt.report.tree import Table, columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of a step: its name, what it takes, and what was expected of it, if anything was."""

    name: str
    footprint: Footprint
    prediction: Prediction | None = None
    budget_bytes: int | None = None


def footprints_report(title: str, versions: Iterable[Version], *, notes: tuple[str, ...] = ()) -> Table:
    """One row a version."""
    return Table(
        title=title,
        columns=columns("version", ">budget", ">total", ">predicted", ">off by", ">temporaries", ">recomputation"),
        rows=tuple(map(_row, versions)),
        notes=notes,
    )


def _row(version: Version) -> tuple[str, ...]:
    footprint, prediction = version.footprint, version.prediction
    total_bytes = footprint.total_bytes
    return (
        version.name,
        "" if version.budget_bytes is None else format_bytes(version.budget_bytes),
        format_bytes(total_bytes),
        "" if prediction is None else format_bytes(prediction.total_bytes),
        "" if prediction is None else f"{100 * (prediction.total_bytes / total_bytes - 1):+.1f}%",
        format_bytes(footprint.temp_bytes),
        "" if prediction is None else format_seconds(prediction.recompute_s) if prediction.recompute_s else "none",
    )
