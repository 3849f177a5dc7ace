"""Loops are opened, residuals connect them, and outlining restores the scans."""

from collections import Counter

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest

from jaxckpt.ir import GraphPlan, Phase, Recompute
from jaxckpt.ir.regions import CARRY, END, SLICE, STACK
from jaxckpt.program.inline import open_jaxpr
from jaxckpt.rewrite import rewrite
from jaxckpt.trace import trace_step
from tests.residuals import residuals

W = jnp.linspace(-1.0, 1.0, 36).reshape(4, 3, 3)
X = jnp.linspace(0.1, 1.0, 6).reshape(2, 3)


def layer(x, w):
    with jax.named_scope("layer"):
        return jnp.sin(jnp.tanh(x @ w)), None


def make_step(body, **options):
    def loss(w, x):
        return (jax.lax.scan(body, x, w, **options)[0] ** 2).sum()

    return jax.value_and_grad(loss)


def scans(jaxpr):
    return [eqn for eqn in open_jaxpr(jaxpr).eqns if eqn.primitive.name == "scan"]


def body_of(eqn):
    return open_jaxpr(eqn.params["jaxpr"])


def counted(graph):
    frame = {CARRY, SLICE, END, STACK}
    return Counter((op.phase, op.primitive) for op in graph.ops if op.primitive not in frame)


@pytest.fixture(scope="module")
def traced():
    return trace_step(make_step(layer), W, X)


def test_the_graph_has_each_body_once(traced):
    graph = traced.graph
    graph.validate()
    forward, backward = graph.loops
    assert (forward.length, forward.reverse, forward.parent) == (4, False, None)
    assert (backward.length, backward.reverse, backward.parent) == (4, True, None)
    inside = [(op.primitive, op.loop) for op in graph.ops if op.primitive in ("tanh", "dot_general")]
    assert inside == [("dot_general", 0), ("tanh", 0), ("dot_general", 1), ("dot_general", 1)]
    assert {op.scope for op in graph.ops if op.primitive == "tanh"} == {"layer"}


def test_backward_loops_read_residuals_of_the_forward_loop(traced):
    graph = traced.graph
    crossing = {
        (graph.ops[producer].primitive, graph.ops[reader].loop)
        for value, producer in enumerate(graph.producer)
        if producer is not None and graph.ops[producer].loop == 0
        for reader in graph.readers[value]
        if graph.ops[reader].loop == 1
    }
    assert (CARRY, 1) in crossing
    assert ("cos", 1) in crossing
    assert (SLICE, 1) not in crossing


def test_residuals_of_a_body_are_kept_once_for_every_iteration(traced):
    graph = traced.graph
    cosine = next(op.writes[0] for op in graph.ops if op.primitive == "cos")
    assert graph.saved_instances[cosine] == 4
    assert graph.residual_bytes(cosine) == 4 * 2 * 3 * 4
    assert graph.runs_per_step(0) == 4
    gradient = next(op.writes[0] for op in graph.ops if op.primitive == "transpose")
    assert graph.saved_instances[gradient] == 1


@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"unroll": 2}], ids=str)
def test_nothing_decided_gives_the_same_loops(options):
    step = make_step(layer, **options)
    traced = trace_step(step, W, X)
    written = jax.make_jaxpr(step)(W, X)
    closed = rewrite(traced, GraphPlan(fingerprint=traced.graph.fingerprint)).jaxpr
    jex.check_jaxpr(open_jaxpr(closed))
    for before, after in zip(scans(written), scans(closed), strict=True):
        for name in ("length", "reverse", "unroll"):
            assert before.params[name] == after.params[name]
        names = [eqn.primitive.name for eqn in body_of(before).eqns]
        assert names == [eqn.primitive.name for eqn in body_of(after).eqns]
        types = Counter(str(v.aval) for v in before.invars), Counter(str(v.aval) for v in after.invars)
        assert types[0] == types[1]
    expected, found = step(W, X), jex.jaxpr_as_fun(closed)(W, X)
    np.testing.assert_array_equal(expected[1], found[1])


def test_a_checkpoint_in_a_body_is_undone():
    plain = trace_step(make_step(layer), W, X).graph
    for policy in (None, jax.checkpoint_policies.dots_saveable):
        undone = trace_step(make_step(jax.checkpoint(layer, policy=policy)), W, X).graph
        assert counted(undone) == counted(plain)
        assert {op.scope for op in undone.ops} == {op.scope for op in plain.ops}


def test_scopes_in_a_body_begin_at_the_body(traced):
    forward = scans(traced.jaxpr)[0]
    stacks = {str(eqn.source_info.name_stack) for eqn in body_of(forward).eqns}
    assert stacks == {"layer"}


def test_gradients_in_a_body_are_planned_in_it():
    def accumulated(w, xs):
        def iteration(sums, x):
            value, gradient = jax.value_and_grad(lambda w: (layer(x, w[0])[0] ** 2).sum())(w)
            return (sums[0] + value, sums[1] + gradient), None

        return jax.lax.scan(iteration, (0.0, jnp.zeros_like(w)), xs)[0]

    graph = trace_step(accumulated, W, jnp.stack([X, X])).graph
    inside = {op.phase for op in graph.ops if op.loop == 0}
    assert inside == {Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE}
    assert set(graph.saved_instances) == {1}


def test_nested_loops_share_residuals_level_by_level():
    def nested(x, w):
        return jax.lax.scan(lambda x, _: layer(x, w), x, None, length=2)

    graph = trace_step(make_step(nested), W, X).graph
    assert [(loop.length, loop.parent) for loop in graph.loops] == [(4, None), (2, 0), (4, None), (2, 2)]
    cosine = next(op for op in graph.ops if op.primitive == "cos")
    assert graph.saved_instances[cosine.writes[0]] == 8
    assert {graph.ops[reader].loop for reader in graph.readers[cosine.writes[0]]} == {3}


def test_unchanged_carries_are_read_from_their_source():
    def body(carry, w):
        x, factor = carry
        return (jnp.sin(x @ w) * factor, factor), None

    def loss(w, x):
        return jax.lax.scan(body, (x, jnp.cos(x)), w)[0][0].sum()

    graph = trace_step(jax.grad(loss), W, X).graph
    assert sum(op.primitive == CARRY and op.loop == 0 for op in graph.ops) == 1


def test_loops_without_a_gradient_stay_closed():
    def step(w, x):
        gradient = jax.grad(lambda w: ((x @ w) ** 2).sum())(w[0])
        scale = jax.lax.scan(lambda c, _: (c * 0.5, None), 1.0, None, length=3)[0]
        return gradient * scale

    graph = trace_step(step, W, X).graph
    assert not graph.loops
    assert [op.primitive for op in graph.ops if op.primitive == "scan"] == ["scan"]


def test_loops_with_effects_stay_closed():
    def printing(x, w):
        jax.debug.print("{}", x.sum())
        return jnp.sin(x @ w), None

    graph = trace_step(make_step(printing), W, X).graph
    assert any(op.primitive == "scan" and op.effects for op in graph.ops)


def test_opening_loops_can_be_turned_off():
    graph = trace_step(make_step(layer), W, X, open_loops=False).graph
    assert not graph.loops
    assert [op.primitive for op in graph.ops if op.primitive == "scan"] == ["scan", "scan"]


def test_inner_loops_read_values_and_slice_arrays_of_outer_ones():
    def loss(w, x):
        x, past = jax.lax.scan(lambda c, w: (jnp.tanh(c @ w),) * 2, x, w)

        def iteration(c, w):
            scale = jnp.exp(c @ w * 0.1)
            return jax.lax.scan(lambda d, old: (jnp.sin(d * scale + old), None), c, past)[0], None

        return (jax.lax.scan(iteration, x, w)[0] ** 2).sum()

    step = jax.value_and_grad(loss)
    traced = trace_step(step, W, X)
    graph = traced.graph
    assert [loop.length for loop in graph.loops] == [4] * 6
    decisions = {r.value: Recompute() for r in residuals(graph) if not graph.ops[r.op].effects}
    plan = GraphPlan(fingerprint=graph.fingerprint, decisions=decisions, stages=(0,))
    expected = jax.tree.leaves(jax.jit(step)(W, X))
    for one, other in zip(jax.jit(rewrite(traced, plan).call)(W, X), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-6)
