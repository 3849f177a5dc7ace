"""Versions of a program side by side, as plain data: totals, scopes, buffers at the peak, recomputed ops.

All differences are against the first version. At the end, the same as rows of one figure each (long form), as
spreadsheets and frames group and pivot them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypedDict

from jaxckpt._shown import Shown
from jaxckpt._units import format_bytes
from jaxckpt.compiler import Footprint, frame_of_rows
from jaxckpt.hlo import Part, Role, ScopeMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedVersion:
    """One version: its name and its footprint."""

    name: str
    footprint: Footprint


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeFigures:
    """The memory of one scope in each version.

    Attributes:
      scope: The path of the scope; "" is the whole step.
      figures: One a version; None where the version has no such scope or no memory map.
    """

    scope: str
    figures: tuple[ScopeMemory | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakBuffer:
    """A buffer alive at the peak without address and live range, so that buffers of two programs can be matched."""

    scope: str
    op: str
    dtype: str
    shape: tuple[int, ...]
    part: Part
    role: Role
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferChange:
    """A kind of buffer of which the peaks of two versions hold different numbers.

    Attributes:
      buffer: The kind.
      before: Buffers of this kind alive at the peak of the first version.
      after: Buffers of this kind alive at the peak of the other version.
    """

    buffer: PeakBuffer
    before: int
    after: int

    @property
    def change_bytes(self) -> int:
        """Bytes that the change adds to the peak; negative where buffers went."""
        return (self.after - self.before) * self.buffer.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakChange:
    """From the peak of the first version to that of another.

    Attributes:
      name: Of the other version.
      changes: Kinds of buffers that came or went; what both hold equally often is left out. The sum of their
        `change_bytes` is the difference between the two peaks.
    """

    name: str
    changes: tuple[BufferChange, ...]

    @property
    def went(self) -> tuple[BufferChange, ...]:
        """Kinds of which the other version holds fewer, most bytes first."""
        return tuple(sorted((c for c in self.changes if c.after < c.before), key=lambda c: c.change_bytes))

    @property
    def came(self) -> tuple[BufferChange, ...]:
        """Kinds of which the other version holds more, most bytes first."""
        return tuple(sorted((c for c in self.changes if c.after > c.before), key=lambda c: -c.change_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputedOp:
    """An op that some version recomputes.

    Attributes:
      scope: The scope of the op.
      op: JAX's primitive; XLA's opcode where XLA does not say.
      by_xla: True if XLA's own rematerialisation recomputes the op, without any decision.
      runs: For each version the number of kernels of the op that run a second time in one step, trip
        counts of loops included.
    """

    scope: str
    op: str
    by_xla: bool
    runs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(Shown):
    """Versions of a program side by side.

    Attributes:
      versions: In the order given; the first is the reference.
      scopes: Of all versions, the whole step first; empty where no version has a memory map.
      peaks: One for each version after the first where both have a memory map.
      recomputed: Ops that any version recomputes, most runs first.
      frontier: Names of the versions that no other beats in both memory and estimated time; a version whose time is
        not known is not in it.
      notes: Sentences on figures that cannot be compared.
    """

    _report: ClassVar[str] = "jaxckpt.report.comparison:comparison_report"

    versions: tuple[ComparedVersion, ...]
    scopes: tuple[ScopeFigures, ...] = ()
    peaks: tuple[PeakChange, ...] = ()
    recomputed: tuple[RecomputedOp, ...] = ()
    frontier: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def summary(self) -> str:
        """The figures that matter most, in one line."""
        return ", ".join(f"{each.name}: {format_bytes(each.footprint.total_bytes)}" for each in self.versions)

    def __getitem__(self, name: str) -> Footprint:
        """The footprint of a version.

        Raises:
          KeyError: There is no such version.
        """
        return {version.name: version.footprint for version in self.versions}[name]

    @property
    def names(self) -> tuple[str, ...]:
        """The versions' names."""
        return tuple(version.name for version in self.versions)

    def to_frame(self) -> Any:
        """All figures as a pandas frame of one figure a row; see `jaxckpt.comparison.comparison_rows`.

        Raises:
          MissingPackageError: pandas is not installed.
        """
        columns = tuple(Row.__annotations__)
        return frame_of_rows(comparison_rows(self), columns=columns, called="Comparison.to_frame")


### As rows

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
