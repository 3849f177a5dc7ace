"""Axis and dimension over which a value is sharded, on the device or on its way to the host, where a decision has none.

The rules are those of DeepSpeed's `partition_activations` where it has any: floating point values of at least as many
elements as there are ranks are sharded, others stay whole. Where DeepSpeed asserts that the size divides, these choose:

1. A decision that names both axis and dimension is carried out as it stands, or refused when the step is rewritten. One
   over an axis that the value is sharded over already changes nothing: the value is saved.
2. An open axis becomes the one with most devices over which the value is replicated and that divides a dimension.
3. An open dimension becomes the first one that is not sharded and that the axis divides: parts gathered along it are
   contiguous.
4. A value that is one device's own already, in the body of a `shard_map`, is saved; so is a value of a cond's branch.
5. Where no axis divides it, or the value is no floating point array, or has fewer elements than the axis has devices,
   the value is saved whole.

Read after `jaxckpt.ir`.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from jaxckpt.ir import Decision, Graph, Moved, Partition, Save, Value


def partition_with_axes(graph: Graph, value: int, decision: Partition) -> Partition | Save:
    """A partition with nothing left open, or `Save` where the value stays whole."""
    array = graph.values[value]
    if array.local or _is_sharded_over(array, decision.axis) or graph.is_branched(graph.loop_of[value]):
        return Save()
    if decision.axis is not None and decision.dim is not None:
        return decision
    if not graph.mesh or decision.axis not in (None, *dict(graph.mesh)):
        return decision  # the rewriter says which axes there are
    if "float" not in array.dtype:
        return Save()
    return _first_partition(graph, array, decision) or Save()


def _first_partition(graph: Graph, array: Value, decision: Partition) -> Partition | None:
    """The first axis and dimension that divide an array, the largest axes first (rules 2 and 3)."""
    candidates = [axis for axis, _ in graph.mesh] if decision.axis is None else [decision.axis]
    for axis in sorted(candidates, key=lambda axis: -graph.axis_size(axis)):
        ways = graph.axis_size(axis)
        if 1 < ways <= prod(array.shape) and not _is_sharded_over(array, axis):
            dims = range(len(array.shape)) if decision.dim is None else (decision.dim,)
            dim = next((dim for dim in dims if _divides(array, dim, ways)), None)
            if dim is not None:
                return Partition(axis=axis, dim=dim)
    return None


def _is_sharded_over(array: Value, axis: str | None) -> bool:
    return any(axis in axes for axes in array.split)


def _divides(array: Value, dim: int, ways: int) -> bool:
    """True if a dimension exists, is not sharded, and can be cut into so many equal parts."""
    return dim < len(array.shape) and not (array.split and array.split[dim]) and array.shape[dim] % ways == 0


def decisions_with_axes(graph: Graph, decisions: Mapping[int, Decision]) -> Mapping[int, Decision]:
    """Decisions with nothing left open; the same ones where nothing is."""
    moved = {v: d for v, d in decisions.items() if isinstance(d, Moved)}
    closed = {v: _with_axes(graph, v, d) for v, d in moved.items()}
    return decisions if closed == moved else {**decisions, **closed}


def _with_axes(graph: Graph, value: int, decision: Moved) -> Decision:
    if isinstance(decision, Partition):
        return partition_with_axes(graph, value, decision)
    if decision.partition is None:
        return decision
    cut = partition_with_axes(graph, value, decision.partition)
    if isinstance(cut, Save):
        return replace(decision, shard=False, axis=None, dim=None)
    return replace(decision, axis=cut.axis, dim=cut.dim)


def sent_bytes(graph: Graph, value: int, decision: Moved) -> int:
    """Bytes of an offloaded value that one device stores on the host, in one iteration where a loop makes it."""
    return graph.values[value].size_bytes // (graph.axis_size(decision.axis) if decision.axis is not None else 1)
