"""Differences of compiled programs: scopes by their path, buffers at the peak as multisets, recomputed ops."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from jaxckpt._records import shared_fields
from jaxckpt.comparison.comparison import (
    BufferChange,
    ComparedVersion,
    Comparison,
    PeakBuffer,
    PeakChange,
    RecomputedOp,
    ScopeFigures,
)
from jaxckpt.compiler import Footprint
from jaxckpt.hlo import Buffer, MemoryMap, Part


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
    places = {name: (each.total_bytes, each.step_s) for name, each in footprints.items() if each.step_s}
    for name, place in places.items():
        if not any(_beats(other, place) for other in places.values()):
            yield name


def _beats(other: tuple[float, float], place: tuple[float, float]) -> bool:
    """True if the other one takes at most as much of both, and less of one."""
    return other != place and other[0] <= place[0] and other[1] <= place[1]


def _notes(footprints: Mapping[str, Footprint]) -> Iterator[str]:
    machines = {name: each.target or "an unknown machine" for name, each in footprints.items()}
    if len({each.target for each in footprints.values()} - {""}) > 1:
        listed = ", ".join(map(" for ".join, machines.items()))
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
