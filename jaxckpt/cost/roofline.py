"""Roofline model: seconds of arithmetic in each op of a step, at a target's rates.

Only the work of the arithmetic units is counted here; the traffic of an op depends on what it is fused with, and
`kernels` adds it. A contraction counts its multiply-adds at the matrix rate of its dtype, elementwise work its
instructions at the vector rate. An op whose work nobody knows is counted as unpriced, never as free of traffic.

Read after `rates`. Source: Williams et al. 2009 (roofline).
"""

from dataclasses import dataclass

from jaxckpt.cost.rates import Rates
from jaxckpt.ir import Graph, Kind, Op

_OPERATIONS = {
    "exp": 8, "exp2": 6, "expm1": 12, "log": 10, "log1p": 12, "tanh": 16, "logistic": 14, "erf": 20, "erf_inv": 30,
    "erfc": 20, "sin": 20, "cos": 20, "pow": 20, "div": 6, "rem": 8, "sqrt": 6, "rsqrt": 4, "cbrt": 12,
}  # fmt: skip
"""Instructions an element, where one does not do: the usual length of the polynomial. On an H200 memory hides them: the
mean error of seconds is 6.53% with one each, 6.51% with these (`python -m benchmarks.constants`)."""
_ALIGNED = 8
"""Elements; kernels of matrix units load so many at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArithmeticCosts:
    """Arithmetic seconds of each op.

    Attributes:
      vector_s: What the op adds to the kernel that it is fused into.
      matrix_s: What it needs of the matrix units, or, for an op with a body, of whatever its FLOPs run on.
      padding_bytes: What a contraction takes for operands whose lengths its kernels cannot do: they are copied into
        longer arrays.
      unpriced: Primitives of ops whose work nobody knows, once for each such op.
    """

    vector_s: tuple[float, ...]
    matrix_s: tuple[float, ...]
    padding_bytes: tuple[int, ...]
    unpriced: tuple[str, ...]


def arithmetic_costs(graph: Graph, rates: Rates) -> ArithmeticCosts:
    """The arithmetic of every op of a graph."""
    return ArithmeticCosts(
        vector_s=tuple(_vector_s(graph, op, rates) for op in graph.ops),
        matrix_s=tuple(_matrix_s(graph, op, rates) for op in graph.ops),
        padding_bytes=tuple(_padding_bytes(graph, op) for op in graph.ops),
        unpriced=tuple(op.primitive for op in graph.ops if op.flops is None),
    )


def _vector_s(graph: Graph, op: Op, rates: Rates) -> float:
    if op.kind not in (Kind.ELEMENTWISE, Kind.REDUCTION):
        return 0.0
    elements = max(map(graph.elements, (*op.reads, *op.writes)), default=0)
    return elements * _OPERATIONS.get(op.primitive, 1) / rates.vector_flops_per_s


def _matrix_s(graph: Graph, op: Op, rates: Rates) -> float:
    if not op.flops or not op.reads:
        return 0.0
    kernels = "convolution" if op.primitive.startswith("conv_general") else "matmul"
    return rates.factor(kernels) * rates.matmul_s(op.flops, graph.values[op.reads[0]].dtype)


def _padding_bytes(graph: Graph, op: Op) -> int:
    """Bytes of the operands of a matrix product that have a length which is no multiple of `_ALIGNED`."""
    if op.primitive != "dot_general" or not op.flops or len(op.reads) != 2:
        return 0
    lengths = _matrix_lengths(graph, op, op.flops)
    if lengths is None:
        return 0
    contracted, free = lengths
    padded = (v for v, length in zip(op.reads, free, strict=True) if contracted % _ALIGNED or length % _ALIGNED)
    return sum(graph.values[v].size_bytes for v in padded)


def _matrix_lengths(graph: Graph, op: Op, flops: float) -> tuple[float, list[float]] | None:
    """The contracted length of a product and the free ones of its operands; None if it is batched or with a vector."""
    # An (m, k) times a (k, n) matrix has 2 m n k FLOPs and m n results, so the lengths follow from the counts; with a
    # batch b all counts are b times as large, and the ratio below is b.
    results = graph.elements(op.writes[0])
    left, right = (graph.elements(v) for v in op.reads)
    contracted = flops / (2 * results)
    free = [left / contracted, right / contracted]
    batch = left * right / (results * contracted**2)
    return None if batch != 1 or 1 in free else (contracted, free)
