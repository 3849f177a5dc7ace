"""The user's own checkpoints are undone: the graph is that of the step without them."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxckpt.ir import GraphPlan, Phase
from jaxckpt.rewrite import apply
from jaxckpt.trace import trace_step
from tests.residuals import residuals

W, X = jnp.full((4, 4), 0.3), jnp.linspace(0.1, 1.0, 12).reshape(3, 4)


@jax.custom_vjp
def kernel(x, w):
    return jnp.sin(x @ w)


def kernel_forward(x, w):
    y = x @ w
    return jnp.sin(y), (x, w, y)


def kernel_backward(kept, g):
    x, w, y = kept
    d = jnp.cos(y) * g
    return d @ w.T, x.T @ d


kernel.defvjp(kernel_forward, kernel_backward)


def scanned(x, w):
    return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), jnp.tanh(x @ w), None, length=3)[0]


BLOCKS = {
    "plain": lambda x, w: jnp.tanh(jnp.sin(x @ w) @ w),
    "jitted": lambda x, w: jax.jit(lambda a, b: jnp.sin(jnp.tanh(a @ b)))(x, w),
    "custom_jvp": lambda x, w: jax.nn.relu(x @ w) @ w,
    "softmax": lambda x, w: jax.nn.softmax(x @ w, -1) @ w,
    "custom_vjp": kernel,
    "nested": lambda x, w: jax.checkpoint(lambda a, b: jnp.sin(jnp.tanh(a @ b) @ b))(jnp.tanh(x @ w), w) @ w,
    "dropout": lambda x, w: jnp.where(jax.random.bernoulli(jax.random.key(3), 0.5, x.shape), x @ w, 0.0) @ w,
    "twice_the_same": lambda x, w: (jnp.sin(x) + x @ w) * (jnp.sin(x) - x @ w),
    "vmapped": lambda x, w: jax.vmap(lambda row: jnp.tanh(row @ w))(x) @ w,
    "barrier": lambda x, w: jnp.sin(jax.lax.optimization_barrier(jnp.sin(x @ w))),
}
WRAPS = {
    "everything": jax.checkpoint,
    "dots": lambda f: jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable),
    "saves_all": lambda f: jax.checkpoint(f, policy=jax.checkpoint_policies.everything_saveable),
    "inner_jit": lambda f: jax.checkpoint(jax.jit(f)),
    "outer_jit": lambda f: jax.jit(jax.checkpoint(f)),
    "may_cse": lambda f: jax.checkpoint(f, prevent_cse=False),
}


def make_step(block, order=1):
    def loss(w, x):
        for i in range(2):
            with jax.named_scope(f"block_{i}"):
                x = block(x, w)
        return jnp.sum(x**2)

    def penalised(w, x):
        return loss(w, x) + jnp.sum(jax.grad(loss)(w, x) ** 2)

    def step(w, x):
        value, g = jax.value_and_grad(loss if order == 1 else penalised)(w, x)
        return w - 0.1 * g, value

    return step


def counted(graph):
    return Counter((op.phase, op.kind) for op in graph.ops)


COMPUTES_TWICE = {"dropout", "twice_the_same"}
"""Blocks whose forward pass repeats itself; merging reads the first of two equal values, so less is left."""


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("block", sorted(BLOCKS.keys() - COMPUTES_TWICE))
def test_the_graph_is_that_without_checkpoints(block, wrap):
    plain = trace_step(make_step(BLOCKS[block]), W, X).graph
    undone = trace_step(make_step(WRAPS[wrap](BLOCKS[block])), W, X).graph
    undone.validate()
    assert counted(undone) == counted(plain)
    assert {op.scope for op in undone.ops} == {op.scope for op in plain.ops}
    assert sorted(undone.values[r.value].size_bytes for r in residuals(undone)) == sorted(
        plain.values[r.value].size_bytes for r in residuals(plain)
    )


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("block", sorted(COMPUTES_TWICE))
def test_checkpoints_add_no_work_to_the_step_without_them(block, wrap):
    plain = counted(trace_step(make_step(BLOCKS[block]), W, X).graph)
    undone = counted(trace_step(make_step(WRAPS[wrap](BLOCKS[block])), W, X).graph)
    assert all(undone[key] <= plain[key] for key in {*plain, *undone})
    assert undone[Phase.FORWARD, "contraction"] == plain[Phase.FORWARD, "contraction"]
    assert undone[Phase.BACKWARD, "contraction"] == plain[Phase.BACKWARD, "contraction"]


@pytest.mark.parametrize("block", ["plain", "custom_jvp", "dropout"])
def test_second_order_forward_passes_lose_their_checkpoints_too(block):
    """Their outer backward keeps the clones that read its own cotangents."""
    plain = trace_step(make_step(BLOCKS[block], order=2), W, X).graph
    undone = trace_step(make_step(jax.checkpoint(BLOCKS[block]), order=2), W, X).graph
    assert counted(undone)[Phase.FORWARD, "contraction"] == counted(plain)[Phase.FORWARD, "contraction"]
    assert len(undone.ops) <= len(plain.ops) + 20


@pytest.mark.parametrize("wrap", ["everything", "dots"])
@pytest.mark.parametrize("block", [*BLOCKS, "loop"])
def test_undone_checkpoints_compute_the_same(block, wrap):
    step = make_step(WRAPS[wrap](scanned if block == "loop" else BLOCKS[block]))
    traced = trace_step(step, W, X)
    ours = jax.jit(jax.extend.core.jaxpr_as_fun(traced.jaxpr))(W, X)
    for mine, theirs in zip(ours, jax.jit(step)(W, X), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def test_loops_keep_their_recomputation_in_the_backward():
    graph = trace_step(make_step(jax.checkpoint(scanned)), W, X, open_loops=False).graph
    plain = trace_step(make_step(scanned), W, X, open_loops=False).graph
    loops = [op.phase for op in graph.ops if op.primitive == "scan"]
    assert loops.count(Phase.FORWARD) == 2
    assert loops.count(Phase.BACKWARD) == 4
    assert counted(graph)[Phase.FORWARD, "contraction"] == counted(plain)[Phase.FORWARD, "contraction"]


def test_a_product_that_a_function_repeats_is_computed_once_with_all_before_it():
    def repeats(x, w):
        return jnp.tanh(jnp.sin(x) @ w) * jnp.cos(jnp.sin(x) @ w)

    once, twice = (
        trace_step(make_step(block), W, X).graph
        for block in (lambda x, w: (lambda y: jnp.tanh(y) * jnp.cos(y))(jnp.sin(x) @ w), repeats)
    )
    assert counted(twice)[Phase.FORWARD, "contraction"] == counted(once)[Phase.FORWARD, "contraction"]
    assert sum(op.primitive == "sin" for op in twice.ops) == sum(op.primitive == "sin" for op in once.ops)


def test_two_derivatives_of_one_network_share_its_values():
    def by(x, w, direction):
        return jax.jvp(lambda x: jnp.tanh(x @ w) @ w, (x,), (direction,))[1]

    def step(w, x):
        return jax.grad(lambda w: (by(x, w, jnp.ones_like(x)) * by(x, w, x)).sum())(w)

    graph = trace_step(step, W, X).graph
    assert sum(op.primitive == "tanh" for op in graph.ops) == 1
    ours = jax.jit(jax.extend.core.jaxpr_as_fun(trace_step(step, W, X).jaxpr))(W, X)
    np.testing.assert_allclose(ours[0], jax.jit(step)(W, X), rtol=1e-5)


def test_a_product_that_a_custom_backward_computes_again_is_a_residual():
    """XLA merges both products, unless what the backward reads has passed a barrier."""

    @jax.custom_vjp
    def layer(x, w):
        return jnp.tanh(x @ w)

    def backward(kept, g):
        x, w = kept
        g = g * (1 - jnp.tanh(x @ w) ** 2)
        return g @ w.T, x.T @ g

    layer.defvjp(lambda x, w: (jnp.tanh(x @ w), (x, w)), backward)
    step = make_step(lambda x, w: x + layer(x, w))
    graph = trace_step(step, W, X).graph
    plain = trace_step(make_step(lambda x, w: x + jnp.tanh(x @ w)), W, X).graph
    assert counted(graph)[Phase.FORWARD, "contraction"] == counted(plain)[Phase.FORWARD, "contraction"]
    assert counted(graph)[Phase.BACKWARD, "contraction"] == counted(plain)[Phase.BACKWARD, "contraction"]
    planned = apply(step, GraphPlan(fingerprint=graph.fingerprint))
    for ours, theirs in zip(jax.tree.leaves(planned(W, X)), jax.tree.leaves(step(W, X)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_elementwise_ops_that_a_function_repeats_stay_where_no_product_is_repeated():
    graph = trace_step(make_step(lambda x, w: jnp.sin(x) + jnp.sin(x) @ w), W, X).graph
    assert sum(op.primitive == "sin" and op.phase is Phase.FORWARD for op in graph.ops) == 4


def test_a_print_inside_a_checkpoint_happens_once():
    seen = []

    def block(x, w):
        jax.debug.callback(lambda v: seen.append(float(v)), x[0, 0])
        return jnp.tanh(x @ w)

    traced = trace_step(make_step(jax.checkpoint(block)), W, X)
    assert sum(bool(op.effects) for op in traced.graph.ops) == 2
    jax.jit(jax.extend.core.jaxpr_as_fun(traced.jaxpr))(W, X)
    jax.effects_barrier()
    assert len(seen) == 2


@pytest.mark.parametrize("pair", [(2.0, 3.0), (0.0, -0.0)])
def test_literals_that_differ_are_not_merged(pair):
    def block(x, w):
        left, right = (jnp.arctan2(literal, -jnp.abs(x @ w)) for literal in pair)
        return jnp.sin(left) * jnp.cos(right) + x @ w

    step = make_step(jax.checkpoint(block))
    traced = trace_step(step, W, X)
    ours = jax.jit(jax.extend.core.jaxpr_as_fun(traced.jaxpr))(W, X)
    for mine, theirs in zip(ours, jax.jit(make_step(block))(W, X), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


@pytest.mark.parametrize("block", ["plain", "custom_jvp", "softmax", "dropout"])
def test_clones_without_an_original_move_to_the_forward_pass(block):
    def late_forward(step):
        graph = trace_step(step, W, X).graph
        start = min(op.id for op in graph.ops if op.phase is Phase.BACKWARD)
        return [op.primitive for op in graph.ops[start:] if op.phase is Phase.FORWARD]

    assert late_forward(make_step(jax.checkpoint(BLOCKS[block]))) == late_forward(make_step(BLOCKS[block])) == []


def test_scopes_of_linen_blocks_do_not_depend_on_remat():
    nn = pytest.importorskip("flax.linen")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            return x + nn.Dense(8, name="out")(nn.gelu(nn.LayerNorm()(nn.Dense(16, name="in")(x))))

    class Net(nn.Module):
        remat: bool

        @nn.compact
        def __call__(self, x):
            block = nn.remat(Block) if self.remat else Block
            for i in range(3):
                x = block(name=f"block_{i}")(x)
            return jnp.sum(x**2)

    x = jnp.ones((2, 8))
    graphs = []
    for remat in (False, True):
        net = Net(remat=remat)
        params = net.init(jax.random.key(0), x)
        graphs.append(trace_step(jax.grad(net.apply), params, x).graph)
    plain, undone = graphs
    for kind in ("contraction", "elementwise", "reduction"):
        for phase in Phase:
            assert counted(plain)[phase, kind] == counted(undone)[phase, kind]
    assert {op.scope for op in plain.ops} == {op.scope for op in undone.ops}
    assert "Net/block_1/LayerNorm_0" in {op.scope for op in undone.ops}


@pytest.mark.parametrize(("dtype", "bits"), [("float8_e4m3fn", (4, 3)), ("bfloat16", (8, 7)), ("float32", (8, 23))])
def test_a_rounding_to_the_bits_of_a_type_gives_what_xla_gives(dtype, bits):
    def step(w, x):
        return jax.grad(lambda w: jnp.tanh(w).sum())(w), jax.lax.reduce_precision(x, *bits).astype(jnp.float32)

    x = jnp.array([400.0, 1.5], dtype)
    graph = trace_step(step, X, x).graph
    planned = apply(step, GraphPlan(fingerprint=graph.fingerprint))
    np.testing.assert_array_equal(planned(X, x)[1], jax.jit(step)(X, x)[1])
    assert ("reduce_precision" in {op.primitive for op in graph.ops}) == dtype.startswith("float8")
