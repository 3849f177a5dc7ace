"""Versions of a program side by side, as plain data: totals, scopes, buffers at the peak, recomputed ops.

All differences are against the first version.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from jaxckpt._shown import Shown
from jaxckpt._units import format_bytes
from jaxckpt.compiler import Footprint
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
      versions: In the given order; the first is the reference.
      scopes: Of all versions, the full step first; empty if no version has a memory map.
      peaks: For each version after the first, if both have a memory map, the changes between the two peaks.
      recomputed: Ops that any version recomputes, most runs first.
      frontier: Names of the versions than which no other is both smaller and faster by estimated time; a version of
        unknown time is not in it.
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
        from jaxckpt.comparison.rows import comparison_frame

        return comparison_frame(self)
