"""Recomputation regions: connected components (union-find) of the forward ops of a scope, without excluded ops.

As in OneFlow's pass, on a `Graph`: the forward ops of a scope, without the excluded ones, form connected components, at
least one for each scope and mesh. Inputs of a component are saved, values inside it are recomputed. A component that
neither backward nor update reads is no region. Regions of layers are those of DeepSpeed and Megatron: consecutive
layers form one, whose first input alone is saved.

Read after `policy` and `model_layers`. Complexity: linear in ops and reads.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from jaxckpt.ir import Graph, Op, Phase, Trait
from jaxckpt.ir.regions import END
from jaxckpt.policy.model_layers import ModelLayers, layers_from_stages, layers_in_scopes, layers_of_model
from jaxckpt.policy.policy import Regions
from jaxckpt.policy.rule import globs, outermost

_Home = tuple[str, int]
"""The scope of a region, or the number of its block or segment."""
_GATHERS = frozenset({"sharding_constraint", "reshard", "all_gather", "all_gather_invariant"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Forward ops that are recomputed together, and their scope; "" for a region of several scopes."""

    scope: str
    ops: frozenset[int]


def find_regions(regions: Regions, graph: Graph, *, stages: Sequence[int] = (0,)) -> tuple[Region, ...]:
    """The regions of a graph that the backward or the update reads, in order.

    `stages` are first ops of the blocks found by structure, for regions without a scope.
    """
    home = _homes(regions, graph, stages)
    for op in excluded_ops(regions, graph, stages=stages):
        home.pop(op, None)
    if regions.output_recompute:
        home = dict.fromkeys(home, ("", 0))
    found = (Region(scope=home[min(ops)][0], ops=ops) for ops in _components(graph, home))
    return tuple(sorted((r for r in found if is_read_after_forward(graph, r.ops)), key=lambda region: min(region.ops)))


def find_layers(regions: Regions, graph: Graph, *, stages: Sequence[int] = (0,)) -> ModelLayers | None:
    """The layers of which regions consist; None for regions of scopes, or of blocks found by structure."""
    if not regions.of_layers:
        return None
    if regions.scope:
        return layers_in_scopes(graph, regions.scope)
    return layers_of_model(graph) or layers_from_stages(graph, stages)


def excluded_ops(regions: Regions, graph: Graph, *, stages: Sequence[int] = (0,)) -> frozenset[int]:
    """Forward ops of the regions that must not run twice."""
    gathers = _parameter_gathers(graph)
    home = _homes(regions, graph, stages)
    return frozenset(op for op in home if _is_excluded(regions, graph, graph.ops[op], gathers))


def region_outputs(graph: Graph, ops: frozenset[int]) -> frozenset[int]:
    """Values that a region hands to forward ops outside it, but for those that a loop hands to its next iteration.

    The next iteration receives these as its carry, a value of its own.
    """
    written = (v for op in ops for v in graph.ops[op].writes)
    return frozenset(v for v in written if any(_is_outside(graph, reader, ops) for reader in graph.readers[v]))


def _is_outside(graph: Graph, reader: int, ops: frozenset[int]) -> bool:
    op = graph.ops[reader]
    return reader not in ops and op.phase is Phase.FORWARD and op.primitive != END


def region_inputs(graph: Graph, ops: frozenset[int]) -> frozenset[int]:
    """Values that a region reads from forward ops outside it."""
    read = {v for op in ops for v in graph.ops[op].reads}
    return frozenset(v for v in read if (made := graph.producer[v]) is not None and made not in ops)


def is_read_after_forward(graph: Graph, ops: Iterable[int]) -> bool:
    """True if the backward or the update reads a result of the ops."""
    return any(
        graph.ops[reader].phase is not Phase.FORWARD
        for op in ops
        for value in graph.ops[op].writes
        for reader in graph.readers[value]
    )


def _homes(regions: Regions, graph: Graph, stages: Sequence[int]) -> dict[int, _Home]:
    """For each forward op of the regions its scope, its block or its segment of layers."""
    if (layers := find_layers(regions, graph, stages=stages)) is not None:
        segments = layers.segments(regions.segment or 1, regions.chosen_layers)
        return {op: ("", number) for number, ops in enumerate(segments) for op in sorted(ops)}
    if not regions.scope:
        return {op: ("", bisect_right(stages, op)) for op in graph.forward}
    scopes = ((op, outermost(regions.scope, graph.ops[op].scope)) for op in graph.forward)
    return {op: (scope, 0) for op, scope in scopes if scope is not None}


def _is_excluded(regions: Regions, graph: Graph, op: Op, gathers: frozenset[int]) -> bool:
    if op.effects or (Trait.RANDOM in op.traits and not regions.recompute_random):
        return True
    if op.id in gathers:
        return not regions.recompute_gathered_parameters
    if Trait.COLLECTIVE in op.traits and not regions.recompute_collectives:
        return True
    return any(_is_named(graph, op, glob) for glob in regions.exclude)


def _is_named(graph: Graph, op: Op, glob: str) -> bool:
    """True if a glob matches the primitive of an op, the name of a result, or a scope around the op."""
    names = (graph.values[v].name for v in op.writes)
    return any(globs(glob, text) for text in (op.primitive, *names)) or outermost(glob, op.scope) is not None


def _parameter_gathers(graph: Graph) -> frozenset[int]:
    """Ops that gather an argument of the step, or an argument-derived value, on more devices.

    A gather in the body of a `shard_map` counts as any other collective: users gather batches there too.
    """
    plain = {*graph.inputs, *graph.constants}
    found: set[int] = set()
    for op in graph.ops:
        if len(op.reads) != 1 or op.reads[0] not in plain:
            continue
        if op.primitive in _GATHERS:
            if not graph.values[op.reads[0]].local:
                found.add(op.id)
        elif op.kind in ("view", "elementwise"):
            plain.update(op.writes)
    return frozenset(found)


def _components(graph: Graph, home: dict[int, _Home]) -> Iterator[frozenset[int]]:
    """Connected ops of one home and one mesh."""
    from scipy.cluster.hierarchy import DisjointSet  # scipy takes a second to load, and few policies have regions

    found = DisjointSet(home)
    mesh: dict[int, str] = {}
    for op in sorted(home):  # producers first: a segment may read a later one, where numbers in scopes mislead
        producers = [m for v in graph.ops[op].reads if (m := graph.producer[v]) in home]
        mesh[op] = graph.ops[op].placement or next((mesh[m] for m in producers if mesh[m]), "")
        for producer in producers:
            if home[producer] == home[op] and mesh[producer] in (mesh[op], ""):
                found.merge(op, producer)
    return map(frozenset, found.subsets())
