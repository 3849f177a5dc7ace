"""Over which axis and dimension a partitioned value is split, where its decision leaves that open.

The same holds for what is cut on its way to the host (`Offload.shard`): what stays whole here goes there whole.

The rules are those of DeepSpeed's `partition_activations` where it has any: floating point values of at least as many
elements as there are ranks are cut, others stay whole. Where it asserts that the size divides, these choose:

1. A decision that says both axis and dimension is carried out as it stands, or refused when the step is rewritten. One
   over an axis that the value is split over already changes nothing: the value is saved.
2. An axis left open is the one with most devices over which the value is whole and that divides a dimension.
3. A dimension left open is the first one that is whole on each device and that the axis divides: what is gathered along
   it lies together.
4. What is a device's own already, in the body of a `shard_map`, is saved; so is what a branch of a cond makes.
5. Where there is none, or the value is no floating point array, or has fewer elements than the axis has devices, it is
   saved whole.

Read after `graph` and `plan`.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from jaxckpt.ir.decision import Decision, Offload, Partition, Save
from jaxckpt.ir.graph import Graph
from jaxckpt.ir.plan import GraphPlan


def partition_with_axes(graph: Graph, value: int, decision: Partition) -> Partition | Save:
    """What becomes of a partition.

    Args:
      graph: The step, with its mesh and splits.
      value: What is to be partitioned.
      decision: Over what; the axis, the dimension or both may be open.

    Returns:
      A partition with axis and dimension, or `Save` where the value stays whole.
    """
    shown = graph.values[value]
    over = {axis for axes in shown.split for axis in axes}
    if shown.local or decision.axis in over or _is_of_branch(graph, value):
        return Save()
    if decision.axis is not None and decision.dim is not None:
        return decision
    if not graph.mesh or decision.axis not in (None, *dict(graph.mesh)):
        return decision  # the rewriter says which axes there are
    if "float" not in shown.dtype:
        return Save()
    named = [axis for axis, _ in graph.mesh] if decision.axis is None else [decision.axis]
    for axis in sorted(named, key=lambda axis: -graph.axis_size(axis)):
        ways = graph.axis_size(axis)
        if ways < 2 or axis in over or prod(shown.shape) < ways:
            continue
        dims = range(len(shown.shape)) if decision.dim is None else (decision.dim,)
        for dim in dims:
            if dim < len(shown.shape) and not (shown.split and shown.split[dim]) and shown.shape[dim] % ways == 0:
                return Partition(axis=axis, dim=dim)
    return Save()


def _is_of_branch(graph: Graph, value: int) -> bool:
    made = graph.producer[value]
    return made is not None and graph.is_branched(graph.ops[made].loop)


def decisions_with_axes(graph: Graph, decisions: Mapping[int, Decision]) -> Mapping[int, Decision]:
    """Decisions with nothing left open; the same ones where nothing is."""
    changed = {
        value: said
        for value, decision in decisions.items()
        if isinstance(decision, Partition | Offload) and (said := _settled(graph, value, decision)) != decision
    }
    return {**decisions, **changed} if changed else decisions


def _settled(graph: Graph, value: int, decision: Partition | Offload) -> Decision:
    if isinstance(decision, Partition):
        return partition_with_axes(graph, value, decision)
    if decision.partition is None:
        return decision
    cut = partition_with_axes(graph, value, decision.partition)
    if isinstance(cut, Save):
        return replace(decision, shard=False, axis=None, dim=None)
    return replace(decision, axis=cut.axis, dim=cut.dim)


def sent_bytes(graph: Graph, value: int, decision: Offload) -> int:
    """What a device sends to the host of a value, or of one turn of it.

    Args:
      graph: The step.
      value: What is offloaded.
      decision: How, with nothing left open.
    """
    return graph.values[value].size_bytes // (graph.axis_size(decision.axis) if decision.axis is not None else 1)


def plan_with_axes(graph: Graph, plan: GraphPlan) -> GraphPlan:
    """A plan with nothing left open; the same one where nothing is."""
    decisions = decisions_with_axes(graph, plan.decisions)
    return plan if decisions is plan.decisions else replace(plan, decisions=decisions)
