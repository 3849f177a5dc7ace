"""Bodies of `shard_map` stand open: what is decided in them is carried out, and their bits stay."""

import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxckpt.ir import GraphPlan, Offload, Partition, Phase, Recompute, Save
from jaxckpt.rewrite import rewrite
from jaxckpt.schedule import partition_with_axes
from jaxckpt.schedule.validate import reason_not_offloadable
from jaxckpt.trace import trace_step
from jaxckpt.verifier.interpret import run_one_by_one
from tests.residuals import residuals
from tests.sharded import DOWN, STEPS, UP, X, around_blocks, block, blocks, body_with_scan, part, scan_of_bodies
from tests.zoo.case import quick_jit

WEIGHTS = (UP, DOWN)


def bodies(closed):
    """The `shard_map` equations of a jaxpr, outermost level."""
    jaxpr = getattr(closed, "jaxpr", closed)
    return [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "shard_map"]


def plan_of(graph, decisions, stages=(0,)):
    return GraphPlan(fingerprint=graph.fingerprint, decisions=decisions, stages=stages)


def dropped(graph):
    return {r.value: Recompute() for r in residuals(graph) if not graph.ops[r.op].effects}


def drawn(graph, seed, *, hosts=False):
    """Random decisions, and stages."""
    dice = random.Random(seed)
    choices = {v: dice.choice((Recompute(), Recompute(), Save(), None)) for v in dropped(graph)}
    for value in choices:
        if hosts and reason_not_offloadable(graph, value) is None and dice.random() < 0.4:
            choices[value] = Offload(prefetch=dice.choice((0, 1)))
    return plan_of(graph, {v: d for v, d in choices.items() if d}, stages=(0, len(graph.ops) // 5))


def assert_same(found, expected):
    for one, other in zip(found, jax.tree.leaves(expected), strict=True):
        scale = float(jnp.abs(other).max())
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5 * scale)


@pytest.mark.parametrize("check_vma", [False, True])
def test_each_residual_of_a_body_is_decided_by_itself(check_vma):
    step = around_blocks(check_vma=check_vma, remat=False)
    traced = trace_step(step, WEIGHTS, X)
    graph = traced.graph
    graph.validate()
    assert "shard_map" not in {op.primitive for op in graph.ops}
    hidden = [op.writes[0] for op in graph.ops if op.primitive == "tanh"]
    assert [graph.values[v].local for v in hidden] == [True, True]
    assert {graph.values[v].size_bytes for v in hidden} == {X.shape[0] * UP.shape[2] // 8 * 4}
    forward = bodies(traced.jaxpr)[0]
    one = next(r.value for r in residuals(graph) if graph.ops[r.op].primitive in ("tanh", "sub", "one_minus_square"))
    fewer = bodies(rewrite(traced, plan_of(graph, {one: Recompute()})).jaxpr)[0]
    assert len(fewer.outvars) == len(forward.outvars) - 1
    none = bodies(rewrite(traced, plan_of(graph, dropped(graph))).jaxpr)
    assert [len(eqn.outvars) for eqn in none[:2]] == [1, 1]
    assert len(none) > len(bodies(traced.jaxpr))


def test_any_decisions_in_bodies_give_the_same_bits():
    step = blocks(block(check_vma=True, remat=True), 1)
    traced = trace_step(step, WEIGHTS, X)
    flat = jax.tree.leaves((WEIGHTS, X))
    expected = run_one_by_one(jax.make_jaxpr(step)(WEIGHTS, X), *flat)
    for plan in (plan_of(traced.graph, dropped(traced.graph)), drawn(traced.graph, 3)):
        rewritten = rewrite(traced, plan)
        assert any(getattr(each, "is_clone", False) for each in rewritten.schedule.steps)
        for one, other in zip(run_one_by_one(rewritten.jaxpr, *flat), expected, strict=True):
            np.testing.assert_array_equal(one, other)


@functools.cache
def unplanned(name, check_vma):
    """What a step computes, with and without `jax.checkpoint`; gradients in bodies differ if nothing is checked."""
    return quick_jit(STEPS[name](check_vma=check_vma, remat=False))(WEIGHTS, X)


@pytest.mark.parametrize(("check_vma", "remat"), [(False, False), (True, True)])
@pytest.mark.parametrize("name", STEPS)
def test_planned_steps_with_bodies_compute_the_same(name, check_vma, remat):
    step = STEPS[name](check_vma=check_vma, remat=remat)
    traced = trace_step(step, WEIGHTS, X)
    graph = traced.graph
    graph.validate()
    assert any(value.local for value in graph.values)
    # Random decisions, which compile as long as the others, for one of the two.
    plans = (plan_of(graph, dropped(graph)), drawn(graph, 1, hosts=True))[: 2 if remat else 1]
    for plan in plans:
        rewritten = rewrite(traced, plan)
        assert any(getattr(each, "is_clone", False) for each in rewritten.schedule.steps)
        assert_same(quick_jit(rewritten.call)(*jax.tree.leaves((WEIGHTS, X))), unplanned(name, check_vma))


def test_checkpoints_in_bodies_and_around_them_are_undone():
    plain, inside, around = (
        trace_step(step, WEIGHTS, X).graph
        for step in (
            around_blocks(check_vma=True, remat=False),
            blocks(block(check_vma=True, remat=True)),
            around_blocks(check_vma=True, remat=True),
        )
    )
    for graph in (inside, around):
        counts = [sum(op.primitive == name for op in graph.ops) for name in ("dot_general", "psum_invariant")]
        assert counts == [sum(op.primitive == name for op in plain.ops) for name in ("dot_general", "psum_invariant")]


@pytest.mark.parametrize("make", [scan_of_bodies, body_with_scan])
def test_loops_around_bodies_and_in_them_are_opened(make):
    graph = trace_step(make(check_vma=True, remat=False), WEIGHTS, X).graph
    assert [loop.length for loop in graph.loops] == [3, 3]
    (hidden,) = (op for op in graph.ops if op.primitive == "tanh")
    assert hidden.loop == 0 and graph.saved_instances[hidden.writes[0]] == 3


def test_collectives_in_bodies_are_counted_as_they_are_written():
    graph = trace_step(STEPS["experts"](check_vma=False, remat=False), WEIGHTS, X).graph
    first = {}
    for op in graph.ops:
        if op.phase is Phase.FORWARD:
            first.setdefault(op.primitive, op)

    def share(name, ways):
        return first[name].exchange_bytes / sum(graph.values[v].size_bytes for v in first[name].reads) * ways

    assert share("all_to_all", 8) == pytest.approx(7)
    assert share("reduce_scatter", 8) == pytest.approx(7)
    assert share("ppermute", 1) == 1
    assert share("all_gather", 1) == 7
    summed = next(
        op
        for op in trace_step(around_blocks(check_vma=False, remat=False), WEIGHTS, X).graph.ops
        if op.primitive == "psum"
    )
    assert summed.exchange_bytes == 2 * X.nbytes * 7 // 8


def test_what_comes_in_as_it_does_not_lie_is_an_exchange():
    mesh = jax.make_mesh((8,), ("model",), axis_types=(AxisType.Auto,))
    given = jax.tree.map(lambda w: jax.device_put(w, NamedSharding(mesh, PartitionSpec())), WEIGHTS)
    x = jax.device_put(jnp.tile(X, (2, 1)), NamedSharding(mesh, PartitionSpec("model")))
    graph = trace_step(blocks(block(check_vma=False)), given, x).graph
    entering = [op for op in graph.ops if op.primitive == "to_shards" and op.reads[0] == graph.inputs[2]]
    assert {op.exchange_bytes for op in entering} == {x.nbytes * 7 // 8}


def test_local_values_are_not_split_nor_offloaded_in_loops():
    graph = trace_step(scan_of_bodies(check_vma=False, remat=False), WEIGHTS, X).graph
    own = next(op.writes[0] for op in graph.ops if op.primitive == "tanh")
    assert partition_with_axes(graph, own, Partition(axis="model", dim=0)) == Save()
    assert "shard_map" in reason_not_offloadable(graph, own)


@pytest.mark.parametrize("check_vma", [False, True])
def test_bodies_over_explicit_meshes_are_opened(check_vma):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    rows = PartitionSpec("data")
    specs = (rows, PartitionSpec(None, "model"), PartitionSpec("model", None))
    step = blocks(block(check_vma=check_vma, mesh=mesh, in_specs=specs, out_specs=rows))
    lies = (PartitionSpec(None, None, "model"), PartitionSpec(None, "model", None), rows)
    up, down, x = (jax.device_put(a, NamedSharding(mesh, s)) for a, s in zip((*WEIGHTS, X), lies, strict=True))
    traced = trace_step(step, (up, down), x)
    assert any(value.local for value in traced.graph.values)
    found = quick_jit(rewrite(traced, plan_of(traced.graph, dropped(traced.graph))).call)(up, down, x)
    assert_same(found, quick_jit(step)((up, down), x))


def test_bodies_that_see_some_axes_or_have_effects_stay_one_op():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    some = blocks(block(check_vma=True, mesh=mesh, axis_names={"model"}))

    def told(*operands):
        jax.debug.print("told")
        return part(*operands)

    mesh = jax.make_mesh((8,), ("model",), axis_types=(AxisType.Auto,))
    specs = (PartitionSpec(), PartitionSpec(None, "model"), PartitionSpec("model", None))
    loud = blocks(jax.shard_map(told, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False))
    for step in (some, loud):
        traced = trace_step(step, WEIGHTS, X)
        forward = [op.primitive for op in traced.graph.ops if op.phase is Phase.FORWARD]
        assert forward.count("shard_map") == 2
        planned = rewrite(traced, plan_of(traced.graph, dropped(traced.graph)))
        assert_same(quick_jit(planned.call)(*jax.tree.leaves((WEIGHTS, X))), quick_jit(step)(WEIGHTS, X))


def test_an_array_read_by_another_spec_enters_a_new_body():
    mesh = jax.make_mesh((8,), ("model",), axis_types=(AxisType.Auto,))
    whole, columns = PartitionSpec(), PartitionSpec(None, "model")

    def over(function, in_specs, out_specs):
        return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)

    first = over(lambda x, up: jnp.tanh(x @ up), (whole, columns), columns)
    second = over(lambda hidden, down: jnp.sin(hidden @ down), (whole, columns), columns)
    step = blocks(lambda x, up, down: second(first(x, up), down))
    traced = trace_step(step, WEIGHTS, X)
    hidden = next(op.writes[0] for op in traced.graph.ops if op.primitive == "tanh")
    given = next(op.writes[0] for op in traced.graph.ops if op.primitive == "from_shards" and op.reads == (hidden,))
    taken = next(op for op in traced.graph.ops if op.primitive == "to_shards" and op.reads == (given,))
    assert taken.exchange_bytes == X.shape[0] * UP.shape[2] * 4 * 7 // 8
    expected = quick_jit(step)(WEIGHTS, X)
    for plan in (plan_of(traced.graph, {}), plan_of(traced.graph, dropped(traced.graph))):
        assert_same(quick_jit(rewrite(traced, plan).call)(*jax.tree.leaves((WEIGHTS, X))), expected)
