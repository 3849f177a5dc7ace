"""The work of an equation (FLOP counting): flops of contractions; flops, traffic, workspace of loops, branches, calls.

1. A body is inlined: its flops are summed, its traffic and workspace are those that the cost model predicts of its
   graph (`graph.body_memory`).
2. A body that runs an unknown number of times, and a primitive that no table has, gets flops None: unpriced, not free.
3. All counts are over global shapes; `graph` divides them among the devices.

Complexity: linear in the equations of all bodies, each body once.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.extend.core as jex

from jaxckpt.ir import Kind, kind_of
from jaxckpt.ir.kind import POOLING_GRADIENT
from jaxckpt.program.flat_program import AnyJaxpr, FlatProgram
from jaxckpt.program.inline import CALLS, CUSTOM_DERIVATIVES, JITS, REMATS, called_jaxpr, inline


@dataclass(frozen=True, slots=True, kw_only=True)
class EquationWork:
    """The work of an equation besides reading its operands and writing its results; `flops` are None where unknown.

    `traffic_bytes` are moved inside a body, all iterations together; a body needs `workspace_bytes` while it runs.
    """

    flops: float | None = 0
    traffic_bytes: int = 0
    workspace_bytes: int = 0

    def times(self, iterations: int) -> "EquationWork":
        """The work of so many iterations, in the workspace of one."""
        flops = None if self.flops is None else iterations * self.flops
        return replace(self, flops=flops, traffic_bytes=iterations * self.traffic_bytes)


UNPRICED = EquationWork(flops=None)

_FREE_NAMES = """
    sort cumsum cumprod cummax cummin cumlogsumexp top_k approx_top_k random_bits random_seed random_split
    random_fold_in threefry2x32 rng_bit_generator rng_uniform device_put psum psum2 psum_invariant pmax pmin
    ppermute all_gather all_gather_invariant all_gather_reduced all_to_all reduce_scatter unreduced_psum
    pvary axis_index reshard create_token after_all debug_print debug_callback new_ref ref get swap addupdate
    freeze nonbatchable unvmap_any unvmap_all unvmap_max platform_index empty empty2 layout_constraint
    loop_carry loop_end loop_stack cond_end
"""
_SUMS = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor"})
_FREE = frozenset(_FREE_NAMES.split())
"""Primitives outside the table of kinds that do no floating-point arithmetic worth counting."""

_WORD_BYTES = 4
_LONG_ROW, _FEW_ELEMENTS = 1024, 16
"""From this length, and up to this number of largest elements, XLA has a kernel for float32 (0.10.2 and 0.12.0.1)."""
_FUSIBLE = (Kind.ELEMENTWISE, Kind.VIEW)
_SMALL_MATRICES = 10_000_000
"""Elements of both operands, without axes of a batch, below which XLA makes a sum of a product with a vector."""
_CALLS = JITS | CALLS | CUSTOM_DERIVATIVES


class BodyMemory(NamedTuple):
    """Bytes that one run of a body moves, and the most that it needs at once besides operands and results."""

    traffic_bytes: int = 0
    workspace_bytes: int = 0


class WorkCounter:
    """Counts the work of equations; remembers that of bodies by identity, so it must not outlive the equations.

    Args:
      body_memory: The memory of a body; None where only FLOPs are asked for.
    """

    def __init__(self, body_memory: "Callable[[FlatProgram, WorkCounter], BodyMemory] | None" = None) -> None:
        self._body_memory = body_memory
        self._bodies: dict[int, tuple[EquationWork, bool]] = {}

    def kind(self, eqn: jex.JaxprEqn) -> Kind:
        """The primitive's kind, but for products with vectors, calls of elementwise work and sums over one element."""
        kind = kind_of(eqn.primitive.name)
        if eqn.primitive.name == "dot_general" and _contracted_size(eqn) == 1:
            return Kind.ELEMENTWISE  # XLA makes a product of broadcasts of an outer product, which fuses
        if _is_sum_of_products(eqn):
            return Kind.REDUCTION
        if eqn.primitive.name == "device_put" and _moves_nothing(eqn.params):
            return Kind.VIEW
        if eqn.primitive.name in _SUMS and eqn.invars[0].aval.size == eqn.outvars[0].aval.size:
            return Kind.VIEW  # over axes of length 1
        if kind is Kind.OPAQUE and eqn.primitive.name in _CALLS and not eqn.effects:
            body = called_jaxpr(eqn.params)
            if body is not None and self._of_body(body)[1]:
                return Kind.ELEMENTWISE
        return kind

    def of(self, eqn: jex.JaxprEqn) -> EquationWork:
        """The work of an equation."""
        kind = self.kind(eqn)
        if kind is Kind.CONTRACTION or (kind is Kind.REDUCTION and eqn.primitive.name == "dot_general"):
            return EquationWork(flops=contraction_flops(eqn))
        if eqn.primitive.name == POOLING_GRADIENT:
            return _pooling_gradient(eqn)
        if eqn.primitive.name == "top_k":
            return _largest_elements(eqn)
        if kind is not Kind.OPAQUE:
            return EquationWork()
        return self._of_region(eqn.primitive.name, eqn.params) or self._of_opaque(eqn.primitive.name, eqn)

    def _of_region(self, name: str, params: Mapping[str, Any]) -> EquationWork | None:
        """The work of a loop, a cond or a `shard_map`; None for other primitives."""
        if name == "scan":
            return self._of_body(params["jaxpr"])[0].times(params["length"])
        if name == "while":
            return replace(self._of_body(params["body_jaxpr"])[0], flops=None)
        if name == "cond":
            return _mean([self._of_body(branch)[0] for branch in params["branches"]])
        if name == "shard_map":
            return self._of_body(params["jaxpr"])[0].times(params["mesh"].size)
        return None

    def _of_opaque(self, name: str, eqn: jex.JaxprEqn) -> EquationWork:
        if name == "pallas_call":
            estimate = eqn.params.get("cost_estimate")  # by the kernel's author
            if estimate is None:
                return UNPRICED
            return EquationWork(flops=float(estimate.flops), traffic_bytes=int(estimate.bytes_accessed))
        if name in _CALLS or name in REMATS:
            body = called_jaxpr(eqn.params)
            return UNPRICED if body is None else self._of_body(body)[0]
        if name in _FREE:
            return EquationWork()
        return EquationWork(flops=_LINALG[name](eqn)) if name in _LINALG else UNPRICED

    def _of_body(self, jaxpr: AnyJaxpr) -> tuple[EquationWork, bool]:
        """The work of a body, and whether all of it is elementwise."""
        if id(jaxpr) not in self._bodies:
            program = inline(jaxpr)
            is_elementwise = all(self.kind(equation.eqn) in _FUSIBLE for equation in program.equations)
            self._bodies[id(jaxpr)] = (self._of_program(program), is_elementwise)
        return self._bodies[id(jaxpr)]

    def _of_program(self, program: FlatProgram) -> EquationWork:
        flops = _known([self.of(equation.eqn).flops for equation in program.equations], sum)
        memory = BodyMemory() if self._body_memory is None else self._body_memory(program, self)
        return EquationWork(flops=flops, traffic_bytes=memory.traffic_bytes, workspace_bytes=memory.workspace_bytes)


def _pooling_gradient(eqn: jex.JaxprEqn) -> EquationWork:
    """The work of the gradient of a maximum over windows, which XLA for GPUs computes by three kernels.

    One writes the maximum of each window, in float32, and its place, an int32 an axis; one writes zeros; one scatters
    the cotangent into the zeros at these places, which are in memory with the zeros.
    """
    maxima = eqn.invars[0].aval
    axis_bytes = maxima.size * _WORD_BYTES
    places_bytes = axis_bytes * len(maxima.shape)
    scattered_bytes = 2 * maxima.size * maxima.dtype.itemsize
    moved_bytes = axis_bytes + 2 * places_bytes + scattered_bytes
    return EquationWork(traffic_bytes=moved_bytes, workspace_bytes=places_bytes)


def _largest_elements(eqn: jex.JaxprEqn) -> EquationWork:
    """The work of `top_k`: XLA for GPUs sorts all elements with their positions, an int32 each.

    It has a kernel of its own for a few elements of long rows of float32, which reads them once.
    """
    operand, length = eqn.invars[0].aval, eqn.params["k"]
    if (
        operand.dtype == "float32"
        and operand.shape[eqn.params.get("axis", -1)] >= _LONG_ROW
        and length <= _FEW_ELEMENTS
    ):
        return EquationWork()
    sorted_bytes = operand.size * (operand.dtype.itemsize + _WORD_BYTES)
    return EquationWork(traffic_bytes=sorted_bytes, workspace_bytes=sorted_bytes)


def _contracted_size(eqn: jex.JaxprEqn) -> int:
    """Products that a `dot_general` adds up for each element of its result; 1 for an outer product."""
    (contracted, _), _ = eqn.params["dimension_numbers"]
    return math.prod(eqn.invars[0].aval.shape[axis] for axis in contracted)


def _is_sum_of_products(eqn: jex.JaxprEqn) -> bool:
    """True for a product of a vector and the rows of a matrix: XLA makes a multiplication and a sum of it, which fuse.

    The same is true of columns, but their operand is in memory as often as that of a product (graph attention).
    Source: xla/service/gpu/transforms/algebraic_simplifier.cc, ShouldStrengthReduceDotToReduce.
    """
    if eqn.primitive.name != "dot_general":
        return False
    free = [
        math.prod(length for axis, length in enumerate(operand.aval.shape) if axis not in (*contracted, *batch))
        for operand, contracted, batch in zip(eqn.invars, *eqn.params["dimension_numbers"], strict=True)
    ]
    (contracted, _), matrix = eqn.params["dimension_numbers"], free.index(max(free))
    is_of_rows = max(contracted[matrix], default=-1) == len(eqn.invars[matrix].aval.shape) - 1
    return 1 in free and is_of_rows and _contracted_size(eqn) * sum(free) < _SMALL_MATRICES


def _moves_nothing(params: Mapping[str, Any]) -> bool:
    """True if a `device_put` names no destination; `jnp.asarray` traces to such ones."""
    return all(device is None for device in params.get("devices", ()))


def _mean(works: Sequence[EquationWork]) -> EquationWork:
    """The work of branches that run equally often, in the largest workspace."""
    return EquationWork(
        flops=_known([work.flops for work in works], lambda flops: sum(flops) / max(1, len(works))),
        traffic_bytes=sum(work.traffic_bytes for work in works) // max(1, len(works)),
        workspace_bytes=max((work.workspace_bytes for work in works), default=0),
    )


def _known(counts: Sequence[float | None], combine: Callable[[Sequence[float]], float]) -> float | None:
    """Counts combined, or None where one of them is unknown."""
    known = [count for count in counts if count is not None]
    return combine(known) if len(known) == len(counts) else None


def contraction_flops(eqn: jex.JaxprEqn) -> float | None:
    """Multiplications and additions of a matrix product or convolution; None for one that is not in the table.

    Example: 2 * batch * M * N * K of a `dot_general`; 2 * output elements * kernel elements per output channel
    of a convolution, without the zeros that a dilated operand is filled up with.
    """
    name, params = eqn.primitive.name, eqn.params
    if name == "dot_general":
        return _product_flops(eqn, params["dimension_numbers"], group=())
    if name in ("ragged_dot", "ragged_dot_general"):
        numbers = params["ragged_dot_dimension_numbers"]
        return _product_flops(eqn, numbers.dot_dimension_numbers, group=numbers.rhs_group_dimensions)
    kernel = eqn.invars[1].aval.shape
    results = math.prod(eqn.outvars[0].aval.shape)
    if name == "conv_general_dilated":
        features = kernel[params["dimension_numbers"].rhs_spec[0]]
        zeros = math.prod(params["lhs_dilation"])  # of so many elements of the dilated operand one is not zero
        return 2.0 * results * math.prod(kernel) / max(1, features * zeros)
    if name == "scaled_matmul_wrapper":
        return 2.0 * results * kernel[-1]
    return None


def _product_flops(eqn: jex.JaxprEqn, dimension_numbers: Sequence[Any], *, group: Sequence[int]) -> float:
    """Each element of the left operand is multiplied with every free element of the right one."""
    (_, contracted), (_, batch) = dimension_numbers
    left, right = (operand.aval.shape for operand in eqn.invars[:2])
    bound = {*contracted, *batch, *group}
    return 2.0 * math.prod(left) * math.prod(n for i, n in enumerate(right) if i not in bound)


_LINALG: dict[str, Callable[[jex.JaxprEqn], float]] = {
    "fft": lambda eqn: (
        5.0 * math.prod(eqn.outvars[0].aval.shape) * math.log2(max(2, math.prod(eqn.params["fft_lengths"])))
    ),
    "cholesky": lambda eqn: math.prod(eqn.invars[0].aval.shape) * eqn.invars[0].aval.shape[-1] / 3,
    "triangular_solve": lambda eqn: float(math.prod(eqn.invars[1].aval.shape) * eqn.invars[0].aval.shape[-1]),
}
"""The textbook counts (Golub and Van Loan, Matrix Computations, 4th edition, 1.4 and 4.2)."""
