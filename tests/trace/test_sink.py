"""Code sinking: what moves to its first reader, and what stays."""

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

import jaxckpt
from jaxckpt.ir import Phase
from jaxckpt.trace import step as step_module, trace_step

W, X = jnp.full((4, 4), 0.3), jnp.linspace(0.1, 1.0, 12).reshape(3, 4)


def block(w, first, x):
    return first * (x @ w) + x


def crossed(weights, x, block=block):
    """Products times the input, added to what they read: cotangents go on while their products wait."""
    first, x = jnp.sin(x), jnp.exp(x)
    for w in weights:
        x = block(w, first, x)
    return jnp.mean(x**2)


def checkpointed(weights, x):
    return crossed(weights, x, jax.checkpoint(block))


GRADIENT = jax.grad(crossed, argnums=(0, 1))


def waits(traced):
    """For each product of a cotangent with `first` the ops between it and its first reader."""
    graph = traced.graph
    first = next(op.writes[0] for op in graph.ops if op.primitive == "sin")
    products = (graph.ops[reader] for reader in graph.readers[first])
    of_backward = [op for op in products if op.phase is Phase.BACKWARD and op.primitive == "mul"]
    return [graph.readers[op.writes[0]][0] - op.id - 1 for op in of_backward]


def test_the_product_of_a_cotangent_waits_for_its_reader(monkeypatch):
    *later, of_first_layer = waits(trace_step(GRADIENT, [W] * 3, X))
    assert later == [0, 0]
    assert of_first_layer > 0  # it is the last reader of `first`, which would be live longer
    monkeypatch.setattr(step_module, "sink_elementwise", lambda program, phases: (program, phases))
    assert min(waits(trace_step(GRADIENT, [W] * 3, X))) > 0  # as differentiation orders them


def test_a_value_whose_operand_is_read_no_more_stays(monkeypatch):
    def gated(w, x):
        for _ in range(3):
            x = x * (x @ w)  # nothing reads the cotangent behind the two products with it
        return jnp.sum(x)

    ops = [(op.primitive, op.reads) for op in trace_step(jax.grad(gated), W, X).graph.ops]
    monkeypatch.setattr(step_module, "sink_elementwise", lambda program, phases: (program, phases))
    assert ops == [(op.primitive, op.reads) for op in trace_step(jax.grad(gated), W, X).graph.ops]


def test_the_step_computes_the_same():
    traced = trace_step(jax.value_and_grad(crossed, argnums=(0, 1)), [W] * 3, X)
    loss, gradients = jax.value_and_grad(crossed, argnums=(0, 1))([W] * 3, X)
    flat = jex.jaxpr_as_fun(traced.jaxpr)(W, W, W, X)
    for ours, theirs in zip(flat, jax.tree.leaves((loss, gradients)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_layers_take_at_most_one_activation_more_than_under_jax_checkpoint():
    """As differentiation orders them, a barrier keeps both a cotangent and its product: 180 MiB, not 116 (jax 0.12)."""
    weights, x = [jax.ShapeDtypeStruct((512, 512), jnp.float32)] * 6, jax.ShapeDtypeStruct((4096, 512), jnp.float32)
    plan = jaxckpt.plan(GRADIENT, weights, x, target="h200", budget="1GiB", strategy="layers")
    by_hand = jaxckpt.footprint(jax.grad(checkpointed, argnums=(0, 1)), weights, x, target="h200")
    assert plan.footprint.total_bytes <= by_hand.total_bytes + 4 * x.size


@jax.custom_vjp
def _of_products(w, m):
    return jnp.sum(m @ w)


def _of_products_backward(saved, cotangent):
    w, m = saved
    x = w * cotangent
    early = x + 1.0
    late = m @ (m @ x)
    sunk = late * early
    return m @ (sunk + x) * cotangent, None


_of_products.defvjp(lambda w, m: (_of_products(w, m), (w, m)), _of_products_backward)


def test_a_value_stays_before_a_reader_that_has_moved_behind_another():
    """`early` moves to its reader, behind the first products: `x` is read there first, though `early` stands before."""
    step = jax.value_and_grad(_of_products)
    traced = trace_step(step, W, W.T)
    graph = traced.graph
    assert all(graph.producer[v] is None or graph.producer[v] < op.id for op in graph.ops for v in op.reads)
    for ours, own in zip(jaxckpt.apply(step, "nothing")(W, W.T), step(W, W.T), strict=True):
        np.testing.assert_allclose(ours, own, rtol=1e-6)


def test_the_index_of_a_cond_stays_in_front_of_its_branches():
    """A Python number selects a layer under `jax.checkpoint`: its clamp is an op of the backward."""

    def loss(w, x):
        @jax.checkpoint
        def layer(x):
            x = jax.lax.switch(1, [lambda x: jnp.tanh(x @ w), lambda x: jnp.sin(x @ w)], x)
            return jnp.tanh(x @ w)

        return jnp.sum(layer(x) ** 2)

    step = jax.value_and_grad(loss)
    planned = jaxckpt.plan(step, W, X, budget="1GiB", target="cpu", strategy="none").apply(step)
    assert all(map(np.allclose, jax.tree.leaves(planned(W, X)), jax.tree.leaves(step(W, X))))
