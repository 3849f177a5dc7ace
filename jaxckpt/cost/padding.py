"""Writes of matrix products besides their results: operands copied into longer arrays, and parts of a split sum.

1. Matrix units load several elements at once: all lengths of a product are multiples of `_ALIGNED`.
2. A product with a small result and a long sum, such as the gradient of a weight, is summed in parts (split K), since
   one block of threads a tile would not keep the device busy. The sum's length is a multiple of the number of parts,
   each of which begins at a multiple of `_ALIGNED_BYTES`. 200,000 rows become 200,192. Another kernel adds the parts.

What is copied is in memory: the kernel of the product cannot compute it of what it loads.
"""

from collections.abc import Sequence
from math import ceil, prod

from jaxckpt.cost.merged_products import merged_products
from jaxckpt.ir import Graph, Kind, Op, Phase
from jaxckpt.schedule.layout import is_matrix_product, read_from_transforms

_ALIGNED = 8
"""Elements; kernels of matrix units load so many at once."""
_ALIGNED_BYTES = 16
"""Each part of a split sum begins at a multiple of this."""
_TILE = 128
"""Rows and columns of the result that one block of threads computes."""
_BLOCKS = 132
"""Blocks that run at once, on an H200."""
_PARTS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Numbers of parts that XLA chooses from."""
_ADDITION, _LAUNCH = {2: 3.65, 4: 3.0}, {2: 0.8, 4: 2.0}
"""By bytes of an element. To write one part more of one block's result, and to read it again, takes as long as so many
steps of its sum; the kernel that adds the parts up takes as long as so many parts more. With these numbers 93 of
94 products of float32 that were compiled with jax 0.12.0.1 have as many parts as here, and 94 of 96 of bfloat16; with
those of float32 it would be 83."""
_PART_ITEMSIZE = 4
"""Parts are summed in float32 at least."""


def sums_padded_parts(graph: Graph, op: Op) -> bool:
    """True for a product that is summed in parts, over a length that they do not divide (rule 2)."""
    lengths = _matrix_lengths(graph, op)
    if lengths is None:
        return False
    contracted, _ = lengths
    parts = number_of_parts(graph, op)
    return parts > 1 and bool(contracted % (parts * max(1, _ALIGNED_BYTES // _itemsize(graph, op.reads[0]))))


def parts_of_sum(contracted: float, free: Sequence[float], *, batch: float = 1.0, itemsize: int = 4) -> int:
    """The number of parts in which a product of these lengths is summed: more blocks at once, but more to add up.

    Example:
      >>> parts_of_sum(200_000, (384, 128)), parts_of_sum(8192, (768, 3072)), parts_of_sum(256, (256, 768))
      (64, 1, 1)
    """
    size = min(max(itemsize, min(_ADDITION)), max(_ADDITION))
    at_once = max(1.0, _BLOCKS / (batch * prod(ceil(length / _TILE) for length in free)))
    added = _ADDITION[size] * max(1.0, batch * prod(free) / _TILE**2)

    def steps(parts: int) -> float:
        return contracted / min(parts, at_once) + (added * (parts + _LAUNCH[size]) if parts > 1 else 0.0)

    return min(_PARTS, key=steps)


def number_of_parts(graph: Graph, op: Op) -> int:
    """In how many parts an op is summed (rule 2); 1 for most."""
    if (lengths := _lengths(graph, op)) is None:
        return 1
    batch, contracted, free = lengths
    free = _merged(graph, op, free)
    return parts_of_sum(contracted, free, batch=batch, itemsize=_itemsize(graph, op.reads[0]))


def _merged(graph: Graph, op: Op, free: Sequence[float]) -> Sequence[float]:
    """The free lengths of a product, or of the one that it is merged into."""
    group = graph.once(merged_products).get(op.id)
    if group is None:
        return free
    products = [graph.ops[each] for each in group]
    other = next(side for side in (0, 1) if len({each.reads[1 - side] for each in products}) == 1)
    lengths = (_lengths(graph, each) for each in products)
    total = sum(each[2][other] for each in lengths if each is not None)
    return (total, free[1]) if other == 0 else (free[0], total)


def parts_bytes(graph: Graph, op: Op) -> int:
    """Bytes of the parts of a sum that a product is split into (rule 2), which a kernel behind it adds up; else 0."""
    if (parts := number_of_parts(graph, op)) == 1:
        return 0
    (result,) = op.writes
    return parts * graph.elements(result) * max(_PART_ITEMSIZE, _itemsize(graph, result))


def _itemsize(graph: Graph, value: int) -> int:
    """Bytes of an element of a value."""
    return graph.values[value].size_bytes // graph.elements(value)


def is_batched(graph: Graph, op: Op) -> bool:
    """True for a product of several matrices, and for one whose lengths are unknown."""
    return _matrix_lengths(graph, op) is None


def padding_bytes(graph: Graph, op: Op) -> int:
    """Bytes of the copies that a product needs; 0 for other ops.

    Of rule 2, an operand that this product alone reads after the forward pass is written into the longer array at once:
    it is counted as itself (see `padded_at_once`).
    """
    transposed = graph.once(read_from_transforms).get(op.id)
    if transposed and number_of_parts(graph, op) > 1:
        return graph.size_bytes(transposed)
    lengths = _matrix_lengths(graph, op)
    if lengths is None:
        return 0
    contracted, free = lengths
    padded = {v for v, length in zip(op.reads, free, strict=True) if contracted % _ALIGNED or length % _ALIGNED}
    if sums_padded_parts(graph, op):
        padded |= {v for v in op.reads if _is_read_by_others(graph, v, op)}
    return graph.size_bytes(padded)


def padded_at_once(graph: Graph, op: Op) -> tuple[int, ...]:
    """Positions of operands that are written into the longer array at once (rule 2), and not copied.

    Where another product reads the same array, which is recomputed or cannot compute it of what it loads, that array is
    in memory as well, and the operand is copied.
    """
    if not sums_padded_parts(graph, op):
        return ()
    return tuple(position for position, v in enumerate(op.reads) if not _is_read_by_others(graph, v, op))


def _matrix_lengths(graph: Graph, op: Op) -> tuple[float, Sequence[float]] | None:
    """The contracted length of a product and the free ones of its operands; None if it is batched or with a vector."""
    lengths = _lengths(graph, op)
    return lengths[1:] if lengths is not None and lengths[0] == 1 else None


def _lengths(graph: Graph, op: Op) -> tuple[float, float, Sequence[float]] | None:
    """The batch, the contracted length of a product and the free ones of its operands; None if it is with a vector."""
    # An (m, k) times a (k, n) matrix has 2 m n k FLOPs and m n results, so the lengths follow from the counts; with a
    # batch b all counts are b times as large, and the ratio below is b.
    if not is_matrix_product(op) or not op.flops or len(op.reads) != 2:
        return None
    results = graph.elements(op.writes[0])
    left, right = (graph.elements(v) for v in op.reads)
    contracted = op.flops / (2 * results)
    batch = left * right / (results * contracted**2)
    free = [left / (batch * contracted), right / (batch * contracted)]
    return None if 1 in free or batch < 1 else (batch, contracted, free)


def _is_read_by_others(graph: Graph, value: int, op: Op) -> bool:
    """True for an argument, and for a value that other ops after the forward pass read."""
    while (made := graph.producer[value]) is not None and graph.ops[made].kind is Kind.VIEW and graph.ops[made].reads:
        value = graph.ops[made].reads[0]
    others = (graph.ops[r] for r in graph.readers[value] if r != op.id)
    return made is None or any(other.phase is not Phase.FORWARD and other.kind is not Kind.VIEW for other in others)
