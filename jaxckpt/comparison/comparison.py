"""Versions of a program side by side, as plain data: totals, scopes, buffers at the peak, recomputed ops.

All differences are against the first version: scopes by their path, buffers at the peak as multisets, recomputed ops.
At the end, the same as rows of one figure each (long form), as spreadsheets and frames group and pivot them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypedDict

from jaxckpt._records import shared_fields
from jaxckpt._shown import Shown
from jaxckpt._units import format_bytes
from jaxckpt.compiler import Footprint, frame_of_rows
from jaxckpt.hlo import Buffer, MemoryMap, Part, Role, ScopeMemory


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

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> versions = {"once": jnp.sin, "twice": lambda x: jnp.sin(jnp.sin(x))}
      >>> comparison = jaxckpt.compare(versions, jnp.ones(8), target="cpu")
      >>> comparison.names
      ('once', 'twice')
      >>> comparison["twice"].argument_bytes
      32
      >>> comparison.versions[0].name
      'once'
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


### Differences


def compare_footprints(footprints: Mapping[str, Footprint]) -> Comparison:
    """Compares footprints, by name, with the first of them. Complexity: linear in kernels and buffers times scopes.

    Example:
      >>> first = Footprint(argument_bytes=1, output_bytes=0, alias_bytes=0, temp_bytes=7, step_s=1.0)
      >>> other = Footprint(argument_bytes=1, output_bytes=0, alias_bytes=0, temp_bytes=9, step_s=2.0)
      >>> compare_footprints({"first": first, "other": other}).frontier
      ('first',)
    """
    maps = [footprint.memory for footprint in footprints.values()]
    return Comparison(
        versions=tuple(ComparedVersion(name=name, footprint=each) for name, each in footprints.items()),
        scopes=tuple(_scopes(maps)),
        peaks=tuple(_peaks(list(footprints), maps)),
        recomputed=tuple(_recomputed(maps)),
        frontier=tuple(_frontier(footprints)),
        notes=tuple(_notes(footprints)),
    )


def peak_changes(before: MemoryMap, after: MemoryMap) -> tuple[BufferChange, ...]:
    """Kinds of buffers of which the peaks of two programs hold different numbers.

    Their `change_bytes` add up to `after.peak_bytes - before.peak_bytes`.
    """
    held = [Counter(map(_kind, memory.alive_at(memory.peak))) for memory in (before, after)]
    kinds = dict.fromkeys((*held[0], *held[1]))
    changes = (BufferChange(buffer=kind, before=held[0][kind], after=held[1][kind]) for kind in kinds)
    return tuple(change for change in changes if change.before != change.after)


def _kind(buffer: Buffer) -> PeakBuffer:
    return PeakBuffer(**shared_fields(buffer, PeakBuffer))


def _peaks(names: Sequence[str], maps: Sequence[MemoryMap | None]) -> Iterator[PeakChange]:
    first, *others = maps
    for name, memory in zip(names[1:], others, strict=True):
        if first is not None and memory is not None:
            yield PeakChange(name=name, changes=peak_changes(first, memory))


def _scopes(maps: Sequence[MemoryMap | None]) -> Iterator[ScopeFigures]:
    tables = [{} if memory is None else {row.scope: row for row in memory.scopes()} for memory in maps]
    for scope in dict.fromkeys(scope for table in tables for scope in table):
        yield ScopeFigures(scope=scope, figures=tuple(table.get(scope) for table in tables))


def _recomputed(maps: Sequence[MemoryMap | None]) -> Iterator[RecomputedOp]:
    counted = [Counter[tuple[str, str, bool]]() if memory is None else _recomputed_runs(memory) for memory in maps]
    ops = dict.fromkeys(op for runs in counted for op in runs)
    for each in sorted(ops, key=lambda op: -max(runs[op] for runs in counted)):
        scope, op, by_xla = each
        yield RecomputedOp(scope=scope, op=op, by_xla=by_xla, runs=tuple(runs[each] for runs in counted))


def _recomputed_runs(memory: MemoryMap) -> Counter[tuple[str, str, bool]]:
    """Runs of recomputed kernels by scope, op, and whether XLA recomputes them by itself."""
    runs = Counter[tuple[str, str, bool]]()
    for kernel in memory.kernels:
        if kernel.part is Part.RECOMPUTE or kernel.by_xla:
            runs[kernel.scope, kernel.op or kernel.opcode, kernel.by_xla] += kernel.count  # type: ignore[assignment]  # shares of branches
    return runs


def _frontier(footprints: Mapping[str, Footprint]) -> Iterator[str]:
    places = {name: (each.total_bytes, each.estimated_step_s) for name, each in footprints.items() if each.step_s}
    for name, place in places.items():
        if not any(_beats(other, place) for other in places.values()):
            yield name


def _beats(other: tuple[float, float], place: tuple[float, float]) -> bool:
    """True if the other one takes at most as much of both, and less of one."""
    return other != place and other[0] <= place[0] and other[1] <= place[1]


def _notes(footprints: Mapping[str, Footprint]) -> Iterator[str]:
    targets = {name: each.target for name, each in footprints.items()}
    if len({*targets.values()} - {""}) > 1:
        listed = ", ".join(f"{name} for {target or 'an unknown machine'}" for name, target in targets.items())
        yield f"The versions were compiled for different machines: {listed}."
    if without_map := [name for name, each in footprints.items() if each.memory is None]:
        yield f"Only totals are known of {', '.join(without_map)}: there is no memory map."
    if without_time := [name for name, each in footprints.items() if not each.step_s]:
        yield f"The time of {', '.join(without_time)} is not known."
    yield from _caveats(footprints)


def _caveats(footprints: Mapping[str, Footprint]) -> Iterator[str]:
    """Each caveat once, with the names of the footprints that have it unless all do."""
    names: dict[str, list[str]] = {}
    for name, each in footprints.items():
        for caveat in dict.fromkeys(each.caveats):
            names.setdefault(caveat, []).append(name)
    for caveat, having in names.items():
        yield caveat if len(having) == len(footprints) else f"{', '.join(having)}: {caveat}"


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
