"""Parts of a forward pass that are computed again whole: collected as subgraphs, split by what must not run twice.

As OneFlow's pass does it, on a `Graph`: the forward ops of a scope, less those that are excluded, fall into connected
components, one at least for each scope and mesh. A component that the backward never reads is left alone. What
crosses into a component is saved, what lies in it is computed again.

Read after `policy`. Complexity: linear in ops and reads.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from jaxckpt.ir import Graph, Op, Phase, Trait
from jaxckpt.policy.policy import Regions
from jaxckpt.policy.rule import globs, outermost

_Home = tuple[str, int]
"""The scope of a region, or the number of its block."""
_GATHERS = frozenset({"sharding_constraint", "reshard", "all_gather", "all_gather_invariant"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Forward ops that are computed again together.

    Attributes:
      scope: The scope that they stand in; "" for a region of several.
      ops: Their ids.
    """

    scope: str
    ops: frozenset[int]

    @property
    def start(self) -> int:
        """The first op."""
        return min(self.ops)

    @property
    def stop(self) -> int:
        """The op behind the last one."""
        return max(self.ops) + 1


def find_regions(regions: Regions, graph: Graph, *, stages: Sequence[int] = (0,)) -> tuple[Region, ...]:
    """Finds the regions of a graph.

    Args:
      regions: Which scopes, and what is excluded.
      graph: The step.
      stages: Ids of the first ops of the blocks that were found by structure, for regions without a scope.

    Returns:
      Regions that the backward reads something of, in the order of their first op.
    """
    home = {op.id: home for op in graph.ops if (home := _home(regions, op, stages)) is not None}
    for op in excluded_ops(regions, graph):
        home.pop(op, None)
    if regions.output_recompute:
        home = dict.fromkeys(home, ("", 0))
    found = (Region(scope=home[min(ops)][0], ops=ops) for ops in _components(graph, home))
    return tuple(sorted((r for r in found if is_read_after_forward(graph, r.ops)), key=lambda region: region.start))


def excluded_ops(regions: Regions, graph: Graph) -> frozenset[int]:
    """Forward ops of the scope that must not run twice."""
    gathers = _parameter_gathers(graph)
    return frozenset(
        op.id for op in graph.ops if _home(regions, op, (0,)) is not None and _is_excluded(regions, graph, op, gathers)
    )


def region_outputs(graph: Graph, ops: frozenset[int]) -> frozenset[int]:
    """Values made by some forward ops that forward ops outside of them read."""
    return frozenset(
        v
        for op in ops
        for v in graph.ops[op].writes
        if any(r not in ops and graph.ops[r].phase is Phase.FORWARD for r in graph.readers[v])
    )


def region_inputs(graph: Graph, ops: frozenset[int]) -> frozenset[int]:
    """Values that some ops read and other forward ops make."""
    read = {v for op in ops for v in graph.ops[op].reads}
    return frozenset(v for v in read if (made := graph.producer[v]) is not None and made not in ops)


def is_read_after_forward(graph: Graph, ops: Iterable[int]) -> bool:
    """Whether the backward or the update reads anything that some ops make."""
    return any(
        graph.ops[reader].phase is not Phase.FORWARD
        for op in ops
        for value in graph.ops[op].writes
        for reader in graph.readers[value]
    )


def _home(regions: Regions, op: Op, stages: Sequence[int]) -> _Home | None:
    """The scope, or the block, that an op is collected for; None where it is not meant."""
    if op.phase is not Phase.FORWARD:
        return None
    if not regions.scope:
        return "", bisect_right(stages, op.id)
    scope = outermost(regions.scope, op.scope)
    return None if scope is None else (scope, 0)


def _is_excluded(regions: Regions, graph: Graph, op: Op, gathers: frozenset[int]) -> bool:
    if op.effects:
        return True
    if Trait.RANDOM in op.traits and not regions.recompute_random:
        return True
    if op.id in gathers:
        return not regions.recompute_gathered_parameters
    if Trait.COLLECTIVE in op.traits and not regions.recompute_collectives:
        return True
    names = [graph.values[v].name for v in op.writes]
    return any(
        globs(glob, text) or outermost(glob, op.scope) is not None
        for glob in regions.exclude
        for text in (op.primitive, *names)
    )


def _parameter_gathers(graph: Graph) -> frozenset[int]:
    """Ops that bring an argument of the step, or what is cheaply made of one, to more devices.

    What the body of a `shard_map` gathers is gathered by hand, the batch like the parameters: a collective as others.
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
    parent = {op: op for op in home}

    def root(op: int) -> int:
        while parent[op] != op:
            parent[op] = parent[parent[op]]
            op = parent[op]
        return op

    mesh: dict[int, str] = {}
    for op in home:
        makers = [m for v in graph.ops[op].reads if (m := graph.producer[v]) in home]
        mesh[op] = graph.ops[op].placement or next((mesh[m] for m in makers if mesh[m]), "")
        for maker in makers:
            if home[maker] == home[op] and mesh[maker] in (mesh[op], ""):
                parent[root(op)] = root(maker)
    members: defaultdict[int, set[int]] = defaultdict(set)
    for op in home:
        members[root(op)].add(op)
    yield from map(frozenset, members.values())
