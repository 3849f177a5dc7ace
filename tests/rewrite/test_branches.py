"""Branches of conds stand open: what is decided in them is carried out, and their bits stay."""

import random
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxckpt._errors import UnsupportedDecisionError
from jaxckpt.ir import GraphPlan, Offload, Partition, Recompute, Save
from jaxckpt.rewrite import rewrite
from jaxckpt.schedule import partition_with_axes, schedule
from jaxckpt.trace import trace_step
from jaxckpt.verifier.interpret import run_one_by_one
from tests.branched import KINDS, STEPS, W, X, layers, narrow, scanned, wide
from tests.residuals import residuals
from tests.zoo.case import quick_jit

ARGS = (W, X, KINDS)
COMPILED = (
    *("layers", "scanned", "around in a scan", "looped in a scan", "nested in a scan"),
    *("dropped", "accumulated", "gradient and more within", "by device", "mapped"),
)
"""Compiled too: the last two cannot be run one operation at a time, of the others one of each kind."""


def plan_of(graph, decisions, stages=(0,)):
    return GraphPlan(fingerprint=graph.fingerprint, decisions=decisions, stages=stages)


def free(graph):
    return [r.value for r in residuals(graph) if not graph.ops[r.op].effects]


def dropped(graph):
    return dict.fromkeys(free(graph), Recompute())


def drawn(graph, seed):
    """Random decisions, and stages."""
    dice = random.Random(seed)
    choices = {v: dice.choice((Recompute(), Save(), None)) for v in free(graph)}
    return plan_of(graph, {v: d for v, d in choices.items() if d}, stages=(0, len(graph.ops) // 5))


def conds(closed):
    """The cond equations of a jaxpr, those in loops too."""
    for eqn in getattr(closed, "jaxpr", closed).eqns:
        if eqn.primitive.name == "cond":
            yield eqn
        elif eqn.primitive.name == "scan":
            yield from conds(eqn.params["jaxpr"])


def primitives(eqn):
    return [Counter(inner.primitive.name for inner in getattr(b, "jaxpr", b).eqns) for b in eqn.params["branches"]]


def branch_of(graph, value):
    loop = graph.ops[graph.producer[value]].loop
    return None if loop is None else graph.loops[loop].branch


def of_branches(graph):
    return [v for v in free(graph) if branch_of(graph, v) is not None]


def test_each_residual_of_a_branch_is_decided_by_itself():
    traced = trace_step(layers(wide, narrow), *ARGS)
    graph = traced.graph
    *_, last = (eqn for eqn in conds(traced.jaxpr) if "sin" in primitives(eqn)[0])
    one, other = (
        [v for v in of_branches(graph) if graph.ops[graph.producer[v]].primitive == name][-1]
        for name in ("cos", "tanh")
    )
    assert branch_of(graph, one).cond == branch_of(graph, other).cond
    for decisions, fewer in (({one: Recompute()}, 0), ({one: Recompute(), other: Recompute()}, 1)):
        *_, changed = (
            eqn for eqn in conds(rewrite(traced, plan_of(graph, decisions)).jaxpr) if primitives(eqn)[1]["mul"] == 1
        )
        assert len(changed.outvars) == len(last.outvars) - fewer
    rewritten = rewrite(traced, plan_of(graph, dropped(graph)))
    first, *_, last = conds(rewritten.jaxpr)
    assert len(first.outvars) == 1
    assert [found["dot_general"] for found in primitives(last)] == [1 + 3, 1 + 1]
    assert all(found["optimization_barrier"] == 0 for found in primitives(last))


def test_values_of_one_type_share_a_slot_if_one_of_them_exists():
    traced = trace_step(layers(wide, narrow), *ARGS)
    first = next(conds(traced.jaxpr))
    graph = traced.graph
    one = next(branch_of(graph, v).cond for v in of_branches(graph))
    ours = [v for v in of_branches(graph) if branch_of(graph, v).cond == one and graph.values[v].shape == X.shape]
    left = Counter(branch_of(graph, v).position for v in ours)
    slots = [v for v in first.outvars[1:] if v.aval.shape == X.shape]
    assert len(slots) == max(left.values()) < left.total()


@pytest.mark.parametrize("name", [name for name in STEPS if name not in ("by device", "mapped")])
def test_any_decisions_in_branches_give_the_same_bits(name):
    step = STEPS[name]
    traced = trace_step(step, *ARGS)
    graph = traced.graph
    graph.validate()
    assert any(loop.branch is not None for loop in graph.loops)
    assert of_branches(graph)
    flat = jax.tree.leaves(ARGS)
    expected = run_one_by_one(jax.make_jaxpr(step)(*ARGS), *flat)
    for plan in (plan_of(graph, {}), plan_of(graph, dropped(graph)), drawn(graph, 3)):
        rewritten = rewrite(traced, plan)
        assert not plan.decisions or any(getattr(each, "is_clone", False) for each in rewritten.schedule.steps)
        for one, other in zip(run_one_by_one(rewritten.jaxpr, *flat), expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", COMPILED)
def test_planned_steps_with_branches_compute_the_same(name):
    step = STEPS[name]
    traced = trace_step(step, *ARGS)
    rewritten = rewrite(traced, drawn(traced.graph, 1))
    for one, other in zip(quick_jit(rewritten.call)(*ARGS), jax.tree.leaves(quick_jit(step)(*ARGS)), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5 * float(jnp.abs(other).max()))


@pytest.mark.parametrize("make", [layers, scanned])
def test_checkpoints_around_conds_are_undone(make):
    plain, around = (
        trace_step(step, *ARGS).graph for step in (make(wide, narrow), make(wide, narrow, around=jax.checkpoint))
    )
    counts = [Counter(op.primitive for op in graph.ops) for graph in (plain, around)]
    assert counts[0]["dot_general"] == counts[1]["dot_general"]
    assert counts[0]["tanh"] == counts[1]["tanh"]


def test_the_index_of_a_cond_is_never_recomputed():
    graph = trace_step(scanned(wide, narrow), *ARGS).graph
    (index,) = {op.reads[0] for op in graph.ops if op.primitive == "cond_end"}
    made = graph.producer[index]
    laid_out = schedule(graph, plan_of(graph, dropped(graph)))
    assert sum(getattr(step, "op", None) == made for step in laid_out.steps) == 1


def test_branches_that_belong_to_no_gradient_are_not_opened():
    for optimiser in (optax.MultiSteps(optax.sgd(0.1), 2), optax.apply_if_finite(optax.sgd(0.1), 3)):

        def step(w, state, x, optimiser=optimiser):
            gradient = jax.grad(lambda w: jnp.tanh(x @ w).sum())(w)
            updates, state = optimiser.update(gradient, state, w)
            return optax.apply_updates(w, updates), state

        args = (W[0], optimiser.init(W[0]), X)
        traced = trace_step(step, *args)
        assert not traced.graph.loops
        assert any(op.primitive == "cond" for op in traced.graph.ops)
        rewritten = rewrite(traced, plan_of(traced.graph, dropped(traced.graph)))
        for one, other in zip(rewritten.call(*jax.tree.leaves(args)), jax.tree.leaves(step(*args)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)


def test_branches_with_effects_are_not_opened():
    def told(w, x):
        jax.debug.print("{}", x.sum())
        return wide(w, x)

    graph = trace_step(layers(told, narrow), *ARGS).graph
    assert not graph.loops
    assert any(op.primitive == "cond" and op.effects for op in graph.ops)


def test_conds_without_residuals_are_not_opened():
    def step(w, x, which):
        def loss(w):
            scale = jax.lax.cond(which[0] > 0, lambda: 2.0, lambda: x.sum())
            return (jnp.tanh(x @ w) * scale).sum()

        return jax.value_and_grad(loss)(w)

    graph = trace_step(step, W[0], X, KINDS).graph
    assert not graph.loops
    assert [op.primitive for op in graph.ops].count("cond") == 1


def test_branches_for_platforms_are_not_opened():
    def loss(w, x):
        return jax.lax.platform_dependent(x @ w, cpu=jnp.sin, cuda=jnp.cos).sum()

    graph = trace_step(jax.grad(loss), W[0], X).graph
    assert not graph.loops
    assert "cond" in {op.primitive for op in graph.ops}


def test_a_mapped_predicate_makes_no_cond():
    def loss(w, x, which):
        return jax.vmap(lambda row, kind: jax.lax.switch(kind, [wide, narrow], w[0], row))(x, which).sum()

    graph = trace_step(jax.grad(loss), W, X, jnp.arange(8) % 2).graph
    assert not graph.loops
    assert "select_n" in {op.primitive for op in graph.ops}


def test_values_of_a_branch_are_not_offloaded_nor_partitioned():
    graph = trace_step(scanned(wide, narrow), *ARGS).graph
    value = of_branches(graph)[-1]
    with pytest.raises(UnsupportedDecisionError, match="a branch of a cond"):
        schedule(graph, plan_of(graph, {value: Offload()}))
    assert partition_with_axes(graph, value, Partition(axis="model", dim=0)) == Save()
