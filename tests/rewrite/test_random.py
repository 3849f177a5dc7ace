"""Random plans on random steps: every one is well-formed, well-typed, and computes the same bits."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings, strategies as st

from jaxckpt.ir import GraphPlan, Phase, Recompute, Save
from jaxckpt.rewrite import apply, rewrite
from jaxckpt.trace import trace_step
from jaxckpt.verifier.interpret import run_one_by_one
from tests.programs import build, programs
from tests.rewrite.plans import droppable
from tests.schedule.test_schedule import check_order


def draw_plan(data, graph):
    """Any decision for any residual, and a save for any other forward value."""
    choices = st.sampled_from([None, Save(), Recompute(), Recompute()])
    decisions = {v: data.draw(choices) for v in droppable(graph)}
    forward = [op for op in graph.ops if op.phase is Phase.FORWARD]
    for op in data.draw(st.lists(st.sampled_from(forward), max_size=3)):
        decisions |= {v: Save() for v in op.writes}
    stages = data.draw(st.lists(st.sampled_from([op.id for op in forward]), max_size=4))
    return GraphPlan(
        fingerprint=graph.fingerprint,
        decisions={v: d for v, d in decisions.items() if d is not None},
        stages=tuple(sorted({0, *stages})),
    )


def assert_same_bits(ours, theirs):
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert mine.dtype == other.dtype
        np.testing.assert_array_equal(mine, other)


@settings(max_examples=15)
@given(programs, st.data())
def test_random_plans_compute_the_same_bits(program, data):
    case = build(program)
    traced = trace_step(case.step, *case.args, donate_argnums=case.donate_argnums)
    traced.graph.validate()
    rewritten = rewrite(traced, draw_plan(data, traced.graph))
    check_order(traced.graph, rewritten.schedule)
    flat = jax.tree.leaves(case.args)
    # What XLA fuses does not matter here, so that copies must agree to the bit.
    assert_same_bits(run_one_by_one(rewritten.jaxpr, *flat), run_one_by_one(traced.jaxpr, *flat))


@settings(max_examples=10)
@given(programs, st.data())
def test_random_plans_give_the_step_s_numbers_when_compiled(program, data):
    case = build(program)
    traced = trace_step(case.step, *case.args)
    function = apply(case.step, draw_plan(data, traced.graph))
    ours, theirs = jax.jit(function)(*case.args), jax.jit(case.step)(*case.args)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(mine, other, rtol=2e-4, atol=jnp.finfo(mine.dtype).eps * 10)
