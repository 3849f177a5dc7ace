"""Rule 8 of `fusion`: a product's kernel goes on with elementwise ops. Each case is compared with XLA's own fusion."""

import jax
import jax.numpy as jnp
import pytest

import jaxckpt
from jaxckpt.cost import fuse
from jaxckpt.machine import targets
from jaxckpt.trace import trace_step

needs_gpu_target = pytest.mark.skipif(
    not any(status.name == "h200" and status.usable for status in targets()),
    reason="needs the CUDA plugin: pip install 'jaxckpt[gpu-targets]'",
)
ROWS, WIDTH = 65536, 128
BYTES = 4 * ROWS * WIDTH


def spec(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


X, W, B = spec(ROWS, WIDTH), spec(WIDTH, WIDTH), spec(WIDTH)
barrier = jax.lax.optimization_barrier

HEADS, MASK = spec(8, 12, 1024, 64), spec(1024, 1024, dtype=bool)


def scores(q, k):
    return jnp.einsum("bhqd,bhkd->bhqk", q, k)


FUSED = {
    "bias": (lambda x, w, b: jnp.tanh(x @ w + b), (X, W, B)),
    "argument": (lambda x, w, y: (x @ w) * y, (X, W, X)),
    "scalar": (lambda x, w: jnp.exp((x @ w) * 0.5), (X, W)),
    "several": (lambda x, w, y, z: jnp.maximum((x @ w) * y + z, 0), (X, W, X, X)),
    "heads": (lambda x, w, y: (x @ w).reshape(ROWS, 4, WIDTH // 4) * y, (X, W, spec(ROWS, 4, WIDTH // 4))),
    "behind a barrier": (lambda x, w, y: (x @ w) * barrier(jnp.sin(y)), (X, W, X)),
    "another product": (lambda x, w, y, v: (x @ w) + (y @ v), (X, W, spec(ROWS, 512), spec(512, WIDTH))),
    "cast of several batch axes": (lambda q, k: scores(q, k).astype(jnp.bfloat16), (HEADS, HEADS)),
    "activation of several batch axes": (lambda q, k: jnp.tanh(scores(q, k)), (HEADS, HEADS)),
    "scale of a batch axis of 1": (lambda q, k: scores(q, k) * 0.5, (spec(1, 96, 1024, 64),) * 2),
}
OF_LATER_XLA = ("behind a barrier", "another product")
"""Cases that XLA does not fuse before jax 0.12."""
UNFUSED = {
    "another op": (lambda x, w, y: (x @ w) * (1 + jnp.sin(y)), (X, W, X)),
    "two readers": (lambda x, w: (lambda h: jnp.sin(h) * h.T)(x @ w), (spec(2048, WIDTH), spec(WIDTH, 2048))),
    "a reduction": (lambda x, w, y: (x @ w) * y.sum(-1, keepdims=True), (X, W, spec(ROWS, 2048))),
    "a barrier between": (lambda x, w, y: barrier(x @ w) * y, (X, W, X)),
    "scale of several batch axes": (lambda q, k: scores(q, k) * 0.5, (HEADS, HEADS)),
    "bias of several batch axes": (lambda q, k, b: scores(q, k) + b, (HEADS, HEADS, spec(1024))),
    "mask of several batch axes": (lambda q, k, m: jnp.where(m, scores(q, k), 0), (HEADS, HEADS, MASK)),
    "few tiles": (lambda x, w, y: (x @ w) * y, (spec(512, ROWS), spec(ROWS, 512), spec(512, 512))),
}


def kernels(function, args):
    """Kernels that XLA makes of a function."""
    memory = jaxckpt.footprint(function, *args, target="h200").memory
    return [kernel.name for kernel in memory.kernels]


def graph_of(function, args):
    """The graph of a function, in a step that is as good as its forward pass."""

    def step(scale, *args):
        return jax.value_and_grad(lambda scale: (function(*args) * scale).sum())(scale)

    return trace_step(step, spec(), *args).graph


@pytest.mark.parametrize("case", FUSED)
def test_a_product_goes_on_with_what_reads_it_alone(case):
    graph = graph_of(*FUSED[case])
    fusion = fuse(graph)
    products = [op.writes[0] for op in graph.ops if op.primitive == "dot_general"]
    assert len(fusion.inside_products.intersection(products)) == 1
    assert fusion.materialised.isdisjoint(fusion.inside_products)


@pytest.mark.parametrize("case", UNFUSED)
def test_a_product_is_written_where_another_kernel_needs_it(case):
    graph = graph_of(*UNFUSED[case])
    fusion = fuse(graph)
    products = {op.writes[0] for op in graph.ops if op.primitive == "dot_general"}
    assert products <= fusion.materialised


@needs_gpu_target
@pytest.mark.parametrize("case", FUSED)
def test_xla_fuses_what_the_rule_fuses(case):
    if case in OF_LATER_XLA and jax.__version_info__ < (0, 12):
        pytest.skip("XLA of this jax fuses no operand but arguments")
    function, args = FUSED[case]
    names = kernels(function, args)
    assert len(names) == (2 if case in OF_LATER_XLA else 1)


@needs_gpu_target
@pytest.mark.parametrize("case", sorted(UNFUSED))
def test_xla_leaves_what_the_rule_leaves(case):
    if case.endswith("batch axes") and jax.__version_info__ < (0, 12):
        pytest.skip("XLA of this jax fuses such operands, too")
    assert len(kernels(*UNFUSED[case])) >= 2


@needs_gpu_target
def test_a_sum_of_products_in_the_backward_is_not_postponed():
    """Each layer adds to the gradient of its first operand: the addition is in the product that is recomputed."""

    def step(weights, x):
        def loss(weights):
            first = hidden = x @ weights[0]
            for weight in weights[1:]:
                hidden = first * (hidden @ weight) + hidden
            return (hidden**2).sum()

        return jax.grad(loss)(weights)

    planner = jaxckpt.Planner(step, [W] * 7, X, target="h200")
    plan = planner.solver.cut_minima.of((0, 1, 10))
    assert abs(plan.predicted.total_bytes / planner.measure(plan).footprint.total_bytes - 1) < 0.1
