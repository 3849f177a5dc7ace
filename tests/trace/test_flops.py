"""Flops of contractions and of bodies, against counts by hand."""

import jax
import jax.numpy as jnp
import pytest

from jaxckpt.ir import Kind
from jaxckpt.program.inline import inline
from jaxckpt.trace import trace_step
from jaxckpt.trace.flops import WorkCounter
from jaxckpt.trace.graph import body_memory

W, X = jnp.full((4, 4), 0.3), jnp.linspace(0.1, 1.0, 12).reshape(3, 4)
PRODUCT = 2 * 3 * 4 * 4


def work(function, *args, primitive):
    program = inline(jax.make_jaxpr(function)(*args))
    eqns = [e.eqn for e in program.equations if e.eqn.primitive.name == primitive]
    return WorkCounter(body_memory).of(eqns[0])


@pytest.mark.parametrize(
    ("function", "shapes", "flops"),
    [
        (jnp.matmul, ((5, 7), (7, 3)), 2 * 5 * 7 * 3),
        (jnp.matmul, ((9, 5, 7), (9, 7, 3)), 2 * 9 * 5 * 7 * 3),
        (lambda a, b: jnp.einsum("bqhd,bkhd->bhqk", a, b), ((2, 5, 3, 8), (2, 7, 3, 8)), 2 * 2 * 3 * 5 * 7 * 8),
        (jnp.dot, ((7,), (7,)), 2 * 7),
        (jnp.outer, ((4,), (6,)), None),
    ],
)
def test_products(function, shapes, flops):
    args = [jnp.ones(shape) for shape in shapes]
    if flops is not None:
        assert work(function, *args, primitive="dot_general").flops == flops


@pytest.mark.parametrize(
    ("image", "kernel", "options", "flops"),
    [
        ((2, 3, 8, 8), (5, 3, 3, 3), {}, 2 * (2 * 5 * 8 * 8) * (3 * 3 * 3)),
        ((2, 4, 8, 8), (8, 2, 3, 3), {"feature_group_count": 2}, 2 * (2 * 8 * 8 * 8) * (2 * 3 * 3)),
    ],
)
def test_convolutions(image, kernel, options, flops):
    def function(x, k):
        return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", **options)

    found = work(function, jnp.ones(image), jnp.ones(kernel), primitive="conv_general_dilated")
    assert found.flops == flops


def test_zeros_of_a_dilated_operand_do_not_count():
    def function(x, k):
        return jax.lax.conv_general_dilated(x, k, (1, 1), [(1, 1), (1, 1)], lhs_dilation=(2, 2))

    found = work(function, jnp.ones((2, 3, 8, 8)), jnp.ones((5, 3, 3, 3)), primitive="conv_general_dilated")
    assert found.flops == 2 * (2 * 5 * 15 * 15) * (3 * 3 * 3) / 4


def test_ragged_products():
    sizes = jnp.array([2, 1], jnp.int32)
    program = inline(jax.make_jaxpr(lambda a, b: jax.lax.ragged_dot(a, b, sizes))(X, jnp.ones((2, 4, 5))))
    (found,) = [WorkCounter().of(e.eqn).flops for e in program.equations if "ragged" in e.eqn.primitive.name]
    assert found == 2 * 3 * 4 * 5


def test_a_loop_is_its_body_times_its_trips():
    def function(w, x):
        return jax.lax.scan(lambda c, _: (jnp.tanh(jax.jit(jnp.matmul)(c, w)), c), x, None, length=5)

    found = work(function, jnp.ones((8, 8)), jnp.ones((16, 8)), primitive="scan")
    assert found.flops == 5 * 2 * 16 * 8 * 8
    # Each trip reads the weight and the carry, writes and reads the product, and writes the new carry.
    assert found.traffic_bytes == 5 * (256 + 512 + 512 + 512 + 512)
    assert found.workspace_bytes == 512


def test_a_body_updates_arrays_in_place():
    def body(state):
        i, rows = state
        rows = jax.lax.fori_loop(0, 4, lambda j, rows: rows.at[j].set(rows[j] * 2), rows.at[i].set(1.0))
        return i + 1, jnp.tanh(rows) + 1

    found = work(
        lambda x: jax.lax.while_loop(lambda state: state[1].sum() < 9, body, (0, x)),
        jnp.ones((1024, 1024)),
        primitive="while",
    )
    assert found.workspace_bytes == pytest.approx(2**22, rel=0.01)


def test_loops_in_loops_multiply():
    def inner(x, w):
        return jax.lax.scan(lambda c, _: (c @ w, None), x, None, length=3)[0]

    found = work(
        lambda w, x: jax.lax.scan(lambda c, _: (inner(c, w), None), x, None, length=2)[0], W, X, primitive="scan"
    )
    assert found.flops == 6 * PRODUCT


def test_an_unknown_number_of_trips_is_unpriced():
    found = work(lambda x: jax.lax.while_loop(lambda y: y[0, 0] < 9, lambda y: y @ W, x), X, primitive="while")
    assert found.flops is None
    assert found.traffic_bytes > 0


def test_branches_count_as_often_as_each_other():
    found = work(lambda x: jax.lax.cond(x[0, 0] > 0, lambda x: x @ W @ W, lambda x: x @ W, x), X, primitive="cond")
    assert found.flops == 1.5 * PRODUCT


def test_calls_with_custom_derivatives_are_their_bodies():
    @jax.custom_jvp
    def f(x):
        return jnp.sin(x @ W)

    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] @ W))
    assert work(f, X, primitive="custom_jvp_call").flops == PRODUCT
    assert work(jax.nn.relu, X, primitive="custom_jvp_call").flops == 0


def test_sharded_bodies_count_for_all_devices_together():
    mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("a")
    function = jax.shard_map(lambda x: x @ W, mesh=mesh, in_specs=spec, out_specs=spec)
    assert work(function, jnp.ones((6, 4)), primitive="shard_map").flops == 2 * PRODUCT


def test_the_gradient_of_a_maximum_writes_places_and_scatters():
    def pooled(x):
        return jnp.sum(jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 2), (2, 2), "VALID") ** 2)

    found = work(jax.grad(pooled), jnp.ones((6, 8)), primitive="select_and_scatter_add")
    windows = 3 * 4
    assert found.workspace_bytes == 2 * 4 * windows  # an int32 for each axis
    assert found.traffic_bytes == 4 * windows + 2 * found.workspace_bytes + 2 * 4 * windows
    assert found.flops == 0


@pytest.mark.parametrize(
    ("shape", "dtype", "count", "sorted_bytes"),
    [
        ((4, 1024), jnp.float32, 20, 8 * 4096),
        ((4, 1023), jnp.float32, 16, 8 * 4092),
        ((4, 1024), jnp.float16, 16, 6 * 4096),
        ((4, 1024), jnp.float32, 16, 0),
    ],
)
def test_largest_elements_are_cut_from_all_elements_sorted(shape, dtype, count, sorted_bytes):
    """With their positions, unless there are few of a long row of float32."""
    found = work(lambda x: jax.lax.top_k(x, count), jnp.ones(shape, dtype), primitive="top_k")
    assert (found.flops, found.traffic_bytes, found.workspace_bytes) == (0, sorted_bytes, sorted_bytes)


def test_unknown_primitives_are_unpriced_and_moves_are_free():
    assert work(jnp.linalg.svd, W, primitive="svd").flops is None
    assert work(jnp.sort, X, primitive="sort").flops == 0
    assert work(lambda k: jax.random.bits(k, (4,)), jax.random.key(0), primitive="random_bits").flops == 0
    assert work(jnp.fft.fft, jnp.ones(8, jnp.complex64), primitive="fft").flops == 5 * 8 * 3
    found = work(
        lambda x: jax.lax.scan(lambda c, _: (jnp.linalg.svd(c)[1] * c, None), x, None, length=2)[0],
        W,
        primitive="scan",
    )
    assert found.flops is None


def test_a_kernel_is_taken_at_its_word():
    pallas = pytest.importorskip("jax.experimental.pallas")

    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    def call(x, estimate):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pallas.pallas_call(kernel, out_shape=shape, interpret=True, cost_estimate=estimate)(x)

    estimate = pallas.CostEstimate(flops=12, transcendentals=0, bytes_accessed=96)
    found = work(lambda x: call(x, estimate), X, primitive="pallas_call")
    assert (found.flops, found.traffic_bytes) == (12, 96)
    assert work(lambda x: call(x, None), X, primitive="pallas_call").flops is None


def test_the_graph_carries_the_work():
    def loss(w, x):
        return jnp.sum(jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=5)[0])

    graph = trace_step(jax.grad(loss), W, X, open_loops=False).graph
    forward, backward = (op for op in graph.ops if op.primitive == "scan")
    assert forward.flops == 5 * PRODUCT
    assert backward.flops == 2 * 5 * PRODUCT
    assert forward.traffic_bytes
    assert forward.workspace_bytes
    assert all(op.traffic_bytes == 0 for op in graph.ops if op.primitive != "scan")


@pytest.mark.parametrize(
    ("spec", "shapes", "kind"),
    [
        ("i,j->ij", ((4,), (3,)), Kind.ELEMENTWISE),
        ("ik,kj->ij", ((4, 1), (1, 3)), Kind.ELEMENTWISE),
        ("eh,hd->hed", ((4, 2), (2, 3)), Kind.ELEMENTWISE),
        ("ik,kj->ij", ((4, 2), (2, 3)), Kind.CONTRACTION),
    ],
)
def test_an_outer_product_is_elementwise(spec, shapes, kind):
    jaxpr = jax.make_jaxpr(lambda a, b: jax.lax.dot_general(a, b, _numbers(spec)))(*map(jnp.ones, shapes))
    assert WorkCounter().kind(jaxpr.eqns[0]) is kind


def _numbers(spec):
    """Dimension numbers of a product of two operands, by letters."""
    left, right = spec.split("->")[0].split(",")
    result = spec.split("->")[1]
    shared = [each for each in left if each in right]
    batch, contracted = [e for e in shared if e in result], [e for e in shared if e not in result]
    return tuple((tuple(map(left.index, of)), tuple(map(right.index, of))) for of in (contracted, batch))


@pytest.mark.parametrize(("shape", "kind"), [((4, 1), Kind.VIEW), ((4, 2), Kind.REDUCTION)])
def test_a_sum_over_axes_of_length_one_is_a_view(shape, kind):
    (eqn,) = jax.make_jaxpr(lambda x: x.sum(1))(jnp.ones(shape)).eqns
    assert WorkCounter().kind(eqn) is kind
