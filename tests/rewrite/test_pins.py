"""What products read only in the layout of its shape is in that layout, and not transposed for each of them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxckpt
from jaxckpt.ir import Phase
from jaxckpt.machine import targets
from jaxckpt.rewrite import rewrite
from jaxckpt.trace import trace_step
from tests.residuals import residuals
from tests.rewrite.plans import plan_of

GPU = any(status.name == "h200" and status.usable for status in targets())
WIDTH, GROUPS, SHARING = 64, 2, 4


def loss(parameters, x):
    """Attention in which four heads share a key, its weights written by a softmax."""
    q = (x @ parameters["q"]).reshape(*x.shape[:2], GROUPS, SHARING, WIDTH)
    k, v = ((x @ parameters[name]).reshape(*x.shape[:2], GROUPS, WIDTH) for name in "kv")
    with jax.named_scope("attention"):
        scores = jnp.einsum("bqkgd,bskd->bkgqs", q, k).astype(jnp.float32)
        mixed = jnp.einsum("bkgqs,bskd->bqkgd", jax.nn.softmax(scores, axis=-1).astype(jnp.bfloat16), v)
    return jnp.sum(mixed.astype(jnp.float32) ** 2)


def arguments(tokens):
    shapes = {"q": (WIDTH, GROUPS * SHARING * WIDTH), "k": (WIDTH, GROUPS * WIDTH), "v": (WIDTH, GROUPS * WIDTH)}
    draw = np.random.default_rng(0).standard_normal
    parameters = {name: jnp.asarray(draw(shape) / 8, jnp.bfloat16) for name, shape in shapes.items()}
    return parameters, jnp.asarray(draw((2, tokens, WIDTH)), jnp.bfloat16)


def pinned(graph, tokens):
    """A plan that keeps the weights and computes the rest again."""
    (weights,) = (
        op.writes[0]
        for op in graph.ops
        if op.phase is Phase.FORWARD and graph.values[op.writes[0]].shape[-2:] == (tokens, tokens)
        if op.primitive == "convert_element_type" and graph.values[op.writes[0]].dtype == "bfloat16"
    )
    drop = [r.value for r in residuals(graph) if r.value != weights]
    return weights, plan_of(graph, drop=drop, save=[weights])


def test_the_barrier_is_over_a_flat_array():
    args = arguments(8)
    traced = trace_step(jax.value_and_grad(loss), *args)
    weights, plan = pinned(traced.graph, 8)
    rewritten = rewrite(traced, plan)
    pins = [e for e in rewritten.jaxpr.jaxpr.eqns if str(e.source_info.name_stack).endswith("jaxckpt/pin")]
    assert [eqn.primitive.name for eqn in pins] == ["reshape", "optimization_barrier", "reshape"]
    shape = traced.graph.values[weights].shape
    assert [eqn.outvars[0].aval.shape for eqn in pins] == [(math.prod(shape),), (math.prod(shape),), shape]
    flat = jax.tree.leaves(args)
    ours = jax.core.eval_jaxpr(rewritten.jaxpr.jaxpr, rewritten.jaxpr.consts, *flat)
    theirs = jax.core.eval_jaxpr(traced.jaxpr.jaxpr, traced.jaxpr.consts, *flat)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.skipif(not GPU, reason="no compile-only H200 here")
def test_a_pinned_value_is_transposed_for_one_product_at_most():
    planner = jaxckpt.Planner(jax.value_and_grad(loss), *arguments(1024), target="h200")
    weights, plan = pinned(planner.graph, 1024)
    size_bytes = planner.graph.values[weights].size_bytes
    memory = planner.measure(planner.problem.plan(plan.decisions, plan.stages, "optimal")).footprint.memory
    assert memory is not None
    turning = [k for k in memory.kernels if k.op == "optimization_barrier" and k.traffic_bytes >= size_bytes]
    assert len(turning) <= 1  # three, where the barrier is over the weights as they lie


def with_joined_projection(parameters, x):
    """Attention whose queries, keys and values are one product: their gradients are concatenated."""
    q, k, v = (part.reshape(*x.shape[:2], -1, WIDTH) for part in jnp.split(x @ parameters["qkv"], 3, axis=-1))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1).astype(jnp.bfloat16), v)
    out = mixed.reshape(x.shape) @ parameters["out"]
    return jnp.sum(out.astype(jnp.float32) ** 2)


def joined_arguments(batch, tokens, heads):
    width, draw = heads * WIDTH, np.random.default_rng(0).standard_normal
    shapes = {"qkv": (width, 3 * width), "out": (width, width)}
    parameters = {name: jnp.asarray(draw(shape) / 8, jnp.bfloat16) for name, shape in shapes.items()}
    return parameters, jnp.asarray(draw((batch, tokens, width)), jnp.bfloat16)


GRADIENTS = jax.value_and_grad(with_joined_projection, argnums=(0, 1))


def layout_barriers(rewritten):
    named = (e for e in rewritten.jaxpr.jaxpr.eqns if str(e.source_info.name_stack).endswith("/layout"))
    return [eqn for eqn in named if eqn.primitive.name == "optimization_barrier"]


def test_what_several_products_would_copy_passes_a_flat_barrier_at_once():
    args = joined_arguments(2, 8, 2)
    traced = trace_step(GRADIENTS, *args)
    recomputed = rewrite(traced, plan_of(traced.graph, drop=[r.value for r in residuals(traced.graph)]))
    shapes = [eqn.outvars[0].aval.shape for eqn in layout_barriers(recomputed)]
    concatenated = math.prod((2, 8, 3 * 2 * WIDTH))
    assert shapes.count((concatenated,)) == 1  # the gradient of the split
    assert all(len(shape) == 1 for shape in shapes)
    flat = jax.tree.leaves(args)
    ours = jax.core.eval_jaxpr(recomputed.jaxpr.jaxpr, recomputed.jaxpr.consts, *flat)
    theirs = jax.core.eval_jaxpr(traced.jaxpr.jaxpr, traced.jaxpr.consts, *flat)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_a_step_with_nothing_recomputed_has_no_barrier_of_layouts():
    traced = trace_step(GRADIENTS, *joined_arguments(2, 8, 2))
    assert not layout_barriers(rewrite(traced, plan_of(traced.graph)))


@pytest.mark.skipif(not GPU, reason="no compile-only H200 here")
def test_the_gradient_of_a_joined_projection_is_not_transposed_for_each_product():
    planner = jaxckpt.Planner(GRADIENTS, *joined_arguments(4, 1024, 8), target="h200")
    plan = plan_of(planner.graph, drop=[r.value for r in residuals(planner.graph)])
    memory = planner.measure(planner.problem.plan(plan.decisions, plan.stages, "optimal")).footprint.memory
    assert memory is not None
    size_bytes = 2 * 4 * 1024 * 3 * 8 * WIDTH
    writing = [k for k in memory.kernels if k.op == "concatenate" and k.traffic_bytes == 2 * size_bytes]
    assert len(writing) == 1  # two, where the concatenation has the layout of its parts
