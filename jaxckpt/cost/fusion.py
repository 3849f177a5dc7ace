"""Which values of a step a compiler writes to memory, and which only pass through a kernel.

XLA runs chains of elementwise work as one kernel. A value inside such a chain is never in memory: who needs it
reads the chain's sources and computes it on the way. So neither bytes nor seconds can be counted equation by
equation. `fuse` marks the values that are in memory ("materialised"), by these rules:

1. What a contraction, a reduction, a scatter or an opaque op writes is in memory, and so is what it needs there:
   the operands of contractions and opaque ops and the base of a scatter, where they are not mere views of
   something in memory. A gather fuses: it computes the elements that it picks.
2. What the step returns is in memory.
3. A value with several readers is in memory where reading its sources again costs more traffic than writing it
   once and reading it back: with k readers, source bytes F and own bytes B, if F + B + (k - 1) B <= k F.
   A residual stream `x + f(x)` is; a cast, a bias or an activation of one large source is not.
4. `a + scatter_add(zeros, ...)`, the gradient of a gather, is a scatter into `a`.

A value that is not in memory but smaller than its sources (a dropout mask beside its random bits) is
`optional`: worth keeping, if something must be kept.

Read after `jaxckpt.ir`. It is a model: what it misses shows up as the difference between predicted and compiled
bytes, and is corrected from there. Complexity: linear in ops times the (small) number of sources.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from jaxckpt.ir import Graph, Kind, Phase

Sources = Mapping[int, int]
"""Values in memory that a value is computed from, each with the bytes that are read of it."""

_NEEDS_MEMORY = frozenset({Kind.CONTRACTION, Kind.OPAQUE, Kind.BARRIER})
_WRITES_MEMORY = frozenset({Kind.CONTRACTION, Kind.REDUCTION, Kind.SCATTER, Kind.OPAQUE, Kind.BARRIER})
_TOUCHES_PART = frozenset({"gather", "dynamic_slice", "slice", "split", "unstack", "squeeze"})
_MANY = 4
"""Readers are counted up to here; more do not change rule 3 in practice."""
_MUCH_SMALLER = 0.75
"""An optional value takes at most this share of its sources; else keeping the sources is as good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """What is in memory when a graph runs as it stands.

    Attributes:
      materialised: Values that some kernel writes to memory.
      optional: Forward values inside a kernel that are smaller than the sources which they stand for.
      light: Values that come from arguments and constants alone, through views and elementwise work: casts of
        parameters, masks, positions. They cost next to nothing to make again and are never worth keeping.
      sources: For every value what is read of memory to have it; a materialised value is its own source.
      op_sources: For every op what its kernel reads, or what it passes on where it starts none.
      quiet: Ops that start no kernel.
    """

    materialised: frozenset[int]
    optional: frozenset[int]
    light: frozenset[int]
    sources: tuple[Sources, ...]
    op_sources: tuple[Sources, ...]
    quiet: frozenset[int]


def fuse(graph: Graph) -> Fusion:
    """Decides which values of a graph are materialised.

    Args:
      graph: The step as traced; nothing recomputed.

    Returns:
      The fusion of the unplanned step. In a planned step the same values are materialised, in copies too, and
      pinned ones besides.
    """
    into_addend = _scatters_into_addend(graph)
    forced = _forced(graph, into_addend)
    materialised, sources, op_sources = _spread(graph, forced, _kernels_reading(graph, forced), into_addend)
    light = _light(graph)
    optional = frozenset(
        v
        for op in graph.ops
        if op.phase is Phase.FORWARD
        for v in op.writes
        if v not in materialised
        and v not in light
        and sources[v]
        and 0 < graph.values[v].size_bytes <= _MUCH_SMALLER * sum(sources[v].values())
        and any(graph.ops[r].phase is not Phase.FORWARD for r in graph.readers[v])
    )
    quiet = (op.id for op in graph.ops if not op.effects and materialised.isdisjoint(op.writes))
    return Fusion(
        materialised=materialised,
        optional=optional,
        light=light,
        sources=sources,
        op_sources=op_sources,
        quiet=frozenset(quiet),
    )


def read_through(graph: Graph, op: int, reads: list[Sources]) -> Sources:
    """The sources of what an op writes, from the sources of what it reads."""
    merged: dict[int, int] = {}
    for source in reads:
        for value, touched in source.items():
            merged[value] = max(touched, merged.get(value, 0))
    if graph.ops[op].primitive in _TOUCHES_PART:
        written = sum(graph.values[v].size_bytes for v in graph.ops[op].writes)
        return {value: min(touched, written) for value, touched in merged.items()}
    return merged


def _scatters_into_addend(graph: Graph) -> frozenset[int]:
    """Ops of rule 4: scatters over a constant whose only reader adds the result to something."""
    found = set()
    for op in graph.ops:
        if op.kind is not Kind.SCATTER or not op.reads or len(op.writes) != 1:
            continue
        readers = graph.readers[op.writes[0]]
        base = graph.producer[op.reads[0]]
        over_constant = base is not None and not graph.ops[base].reads
        if over_constant and len(readers) == 1 and graph.ops[readers[0]].primitive in ("add", "add_any"):
            found.add(op.id)
    return frozenset(found)


def _forced(graph: Graph, into_addend: frozenset[int]) -> set[int]:
    """Rules 1, 2 and 4."""
    forced = set(graph.inputs) | set(graph.constants) | set(graph.outputs)
    for op in graph.ops:
        if op.id in into_addend:
            forced.update(graph.ops[graph.readers[op.writes[0]][0]].writes)
        elif op.kind in _WRITES_MEMORY or op.effects:
            forced.update(op.writes)
        if op.kind in _NEEDS_MEMORY or op.effects:
            forced.update(behind_views(graph, v) for v in op.reads)
        elif op.kind is Kind.SCATTER and op.id not in into_addend and op.reads:
            forced.add(behind_views(graph, op.reads[0]))
    return forced


def behind_views(graph: Graph, value: int) -> int:
    """The value that a chain of views shows, if nothing is repeated on the way; else the value itself."""
    shown = value
    while (op := graph.producer[shown]) is not None:
        if graph.ops[op].kind is not Kind.VIEW or len(graph.ops[op].reads) != 1:
            break
        shown = graph.ops[op].reads[0]
        if graph.values[shown].size_bytes != graph.values[value].size_bytes:
            return value
    return shown


def _kernels_reading(graph: Graph, forced: set[int]) -> list[frozenset[int]]:
    """For each value the kernels that would read it if only `forced` were materialised, up to `_MANY`."""
    kernels: list[frozenset[int]] = [frozenset()] * len(graph.values)
    for op in reversed(graph.ops):
        ends: set[int] = set()
        for value in op.writes:
            ends.update((value,) if value in forced else kernels[value])
        for value in op.reads:
            if len(kernels[value]) < _MANY:
                kernels[value] = kernels[value] | ends
    return kernels


def _spread(
    graph: Graph, forced: set[int], kernels: list[frozenset[int]], into_addend: frozenset[int]
) -> tuple[frozenset[int], tuple[Sources, ...], tuple[Sources, ...]]:
    """Rule 3, in op order, so that the sources of each value are settled before it is looked at."""
    materialised = set(forced)
    sources: list[Sources] = [{v.id: v.size_bytes} if v.id in forced else {} for v in graph.values]
    op_sources: list[Sources] = []
    for op in graph.ops:
        through = read_through(graph, op.id, [sources[v] for v in op.reads])
        op_sources.append(through)
        for value in op.writes:
            size_bytes = graph.values[value].size_bytes
            readers = min(_MANY, len(kernels[value]))
            worth = readers > 1 and size_bytes * readers <= (readers - 1) * sum(through.values())
            if value in forced or (worth and op.kind is not Kind.VIEW and op.id not in into_addend):
                materialised.add(value)
                sources[value] = {value: size_bytes}
            else:
                sources[value] = through
    return frozenset(materialised), tuple(sources), tuple(op_sources)


def _light(graph: Graph) -> frozenset[int]:
    light = set(graph.inputs) | set(graph.constants)
    for op in graph.ops:
        cheap = op.kind in (Kind.VIEW, Kind.ELEMENTWISE) and not op.effects
        if cheap and op.phase is Phase.FORWARD and all(v in light for v in op.reads):
            light.update(op.writes)
    return frozenset(light)
