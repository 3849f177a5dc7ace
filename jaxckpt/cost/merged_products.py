"""Matrix products that a compiler makes one of, because they read the same matrix: queries, keys and values.

XLA merges two products that multiply one matrix by others from the same side, sum over the same axes of it and do not
depend on each other (`dot-merger`), unless both are large. The merged product is split into parts as one, has no
epilogue, and is launched once; whoever reads one of the results takes a slice.

Only products in the bodies of loops are looked at, where launches count. The memory of a merged result is not modelled:
with products outside of loops, plans of a LoRA step took 22.6 MiB for 18.8 (jax 0.10.2).

Read first; `padding`, `fusion_rules` and `kernels` ask.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from jaxckpt.ir import Graph, Op
from jaxckpt.schedule.layout import is_matrix_product

_MOST_BYTES = 128_000_000
"""One of two merged products has at most so many bytes of operands and results: with 121 MiB two are merged, with 126
MiB they are not (jax 0.12.0.1)."""
_FAR = 1024
"""Products so many ops apart are taken to depend on each other: the search between them costs so many steps."""


def merged_products(graph: Graph) -> Mapping[int, frozenset[int]]:
    """For each product of a loop's body that is merged with others all of the merged ones, itself included."""
    candidates: defaultdict[tuple[int | None, int, int, str], list[Op]] = defaultdict(list)
    for op in graph.ops:
        if (
            op.loop is not None
            and is_matrix_product(op)
            and len(set(op.reads)) == 2
            and not op.exchange_bytes
            and not op.effects
        ):
            for position, value in enumerate(op.reads):
                candidates[op.loop, value, position, op.detail].append(op)
    merged: dict[int, frozenset[int]] = {}
    for ops in candidates.values():
        for group in _groups(graph, [op for op in ops if op.id not in merged]) if len(ops) > 1 else ():
            merged.update(dict.fromkeys(group, frozenset(group)))
    return merged


def _groups(graph: Graph, ops: Collection[Op]) -> Iterator[list[int]]:
    """The groups of two ops and more, from the first op on, that are merged."""
    groups: list[list[int]] = []
    group_bytes: list[int] = []
    for op in ops:
        op_bytes = graph.size_bytes((*op.reads, *op.writes))
        for at, group in enumerate(groups):
            if min(group_bytes[at], op_bytes) <= _MOST_BYTES and not _depends(graph, op, group):
                group.append(op.id)
                group_bytes[at] += graph.size_bytes((*set(op.reads).difference(graph.ops[group[0]].reads), *op.writes))
                break
        else:
            groups.append([op.id])
            group_bytes.append(op_bytes)
    return (group for group in groups if len(group) > 1)


def _depends(graph: Graph, op: Op, group: Collection[int]) -> bool:
    """True if an op needs a result of a group of ops before it, or is too far from the first of them to know."""
    first = min(group)
    if op.id - first > _FAR:
        return True
    pending, seen = [op.id], {op.id}
    while pending:
        for value in graph.ops[pending.pop()].reads:
            before = graph.producer[value]
            if before is None or before < first or before in seen:
                continue
            if before in group:
                return True
            seen.add(before)
            pending.append(before)
    return False
