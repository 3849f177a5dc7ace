"""A comparison as rows of one figure each (long form), as spreadsheets and frames group and pivot them."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, TypedDict

from jaxckpt.comparison.comparison import Comparison, PeakChange
from jaxckpt.compiler import Footprint, frame_of_rows
from jaxckpt.hlo import ScopeMemory

_TOTALS = (
    "total_bytes",
    "argument_bytes",
    "output_bytes",
    "alias_bytes",
    "temp_bytes",
    "program_bytes",
    "host_bytes",
    "step_s",
)
_FIGURES = tuple(each.name for each in fields(ScopeMemory) if each.name != "scope")


class Row(TypedDict):
    """One figure of one version.

    Attributes:
      version: The name of the version.
      table: "total", "scope", "peak" (buffers that came or went, against the first version) or "recomputed".
      scope: Its path; "" for the whole step.
      what: For "peak" the buffer, for "recomputed" the op, else "".
      figure: The figure's name, with its unit.
      value: The value.
    """

    version: str
    table: str
    scope: str
    what: str
    figure: str
    value: float


def comparison_rows(comparison: Comparison) -> Iterator[Row]:
    """All figures of a comparison, one a row.

    Example:
      >>> from jaxckpt.comparison import compare_footprints
      >>> made = Footprint(argument_bytes=1, output_bytes=0, alias_bytes=0, temp_bytes=7)
      >>> next(comparison_rows(compare_footprints({"a": made})))["value"]
      8
    """
    for version in comparison.versions:
        yield from _totals(version.name, version.footprint)
    for line in comparison.scopes:
        for name, figures in zip(comparison.names, line.figures, strict=True):
            if figures is not None:
                yield from (_row(name, "scope", line.scope, "", f, getattr(figures, f)) for f in _FIGURES)
    for peak in comparison.peaks:
        yield from _changes(peak)
    for op in comparison.recomputed:
        what = f"{op.op} (by XLA)" if op.by_xla else op.op
        for name, runs in zip(comparison.names, op.runs, strict=True):
            yield _row(name, "recomputed", op.scope, what, "runs", runs)


def comparison_frame(comparison: Comparison) -> Any:
    """All figures of a comparison as a pandas frame; MissingPackageError where pandas is not installed."""
    return frame_of_rows(comparison_rows(comparison), columns=tuple(Row.__annotations__), called="Comparison.to_frame")


def _totals(name: str, made: Footprint) -> Iterator[Row]:
    for figure in _TOTALS:
        yield _row(name, "total", "", "", figure, getattr(made, figure))
    if made.memory is not None:
        yield _row(name, "total", "", "", "peak_bytes", made.memory.peak_bytes)


def _changes(peak: PeakChange) -> Iterator[Row]:
    for change in peak.changes:
        buffer = change.buffer
        value = f"{buffer.dtype}[{','.join(map(str, buffer.shape))}] {buffer.op} {buffer.part} {buffer.role}"
        for figure in ("before", "after", "change_bytes"):
            yield _row(peak.name, "peak", buffer.scope, value, figure, getattr(change, figure))


def _row(version: str, table: str, scope: str, what: str, figure: str, value: float) -> Row:
    return Row(version=version, table=table, scope=scope, what=what, figure=figure, value=value)
