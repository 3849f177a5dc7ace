"""Seconds of arithmetic in each op of a step, by roofline on a target's rates.

Only what the arithmetic units do is priced here; what an op costs in traffic depends on what it is fused with, and
`replay` adds it. A contraction counts its multiply-adds at the matrix rate of its dtype, elementwise work its
instructions at the vector rate. An op whose work nobody knows is counted as unpriced, never as free of traffic.

Read after `rates` and `fusion`. Source: Williams et al. 2009 (roofline).
"""

from dataclasses import dataclass
from math import prod

from jaxckpt.cost.fusion import Fusion
from jaxckpt.cost.rates import Rates
from jaxckpt.ir import Graph, Kind, Op

_OPERATIONS = {
    "exp": 8, "exp2": 6, "expm1": 12, "log": 10, "log1p": 12, "tanh": 16, "logistic": 14, "erf": 20, "erf_inv": 30,
    "erfc": 20, "sin": 20, "cos": 20, "pow": 20, "div": 6, "rem": 8, "sqrt": 6, "rsqrt": 4, "cbrt": 12,
}  # fmt: skip
"""Instructions an element, where one does not do; the usual length of the polynomial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Arithmetic seconds of each op.

    Attributes:
      vector_s: What the op adds to the kernel that it is fused into.
      value_s: For each value that no kernel writes, what the chain up to it adds; 0 for others.
      fused_s: For each op what its kernel needs, with all that is fused into it.
      matrix_s: What it needs of the matrix units, or, for an op with a body, of whatever its FLOPs run on.
      unpriced: Primitives of ops whose work nobody knows, once for each such op.
    """

    vector_s: tuple[float, ...]
    value_s: tuple[float, ...]
    fused_s: tuple[float, ...]
    matrix_s: tuple[float, ...]
    unpriced: tuple[str, ...]


def price(graph: Graph, rates: Rates, fusion: Fusion) -> Prices:
    """Prices every op of a graph, given which values are in memory."""
    vector_s = [_vector_s(graph, op, rates) for op in graph.ops]
    matrix_s = [_matrix_s(graph, op, rates) for op in graph.ops]
    value_s = [0.0] * len(graph.values)
    fused_s = []
    for op in graph.ops:
        chain_s = vector_s[op.id] + max((value_s[v] for v in op.reads), default=0.0)
        fused_s.append(max(chain_s, matrix_s[op.id]))
        for v in op.writes:
            value_s[v] = 0.0 if v in fusion.materialised else chain_s
    return Prices(
        vector_s=tuple(vector_s),
        value_s=tuple(value_s),
        fused_s=tuple(fused_s),
        matrix_s=tuple(matrix_s),
        unpriced=tuple(op.primitive for op in graph.ops if op.flops is None),
    )


def _vector_s(graph: Graph, op: Op, rates: Rates) -> float:
    if op.kind not in (Kind.ELEMENTWISE, Kind.REDUCTION):
        return 0.0
    elements = max((prod(graph.values[v].shape) for v in (*op.reads, *op.writes)), default=0)
    return elements * _OPERATIONS.get(op.primitive, 1) / rates.vector_flops_per_s


def _matrix_s(graph: Graph, op: Op, rates: Rates) -> float:
    if not op.flops or not op.reads:
        return 0.0
    return op.flops / rates.matmul(graph.values[op.reads[0]].dtype)
