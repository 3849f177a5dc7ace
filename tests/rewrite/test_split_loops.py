"""Loop splitting: one scan for each part, over the same arrays, with the numbers of the step."""

from collections import Counter

import jax
import jax.numpy as jnp
import pytest

from jaxckpt import PlanMismatchError
from jaxckpt.ir import LoopSplit, Phase
from jaxckpt.ir.regions import STACK
from jaxckpt.program.inline import open_jaxpr
from jaxckpt.rewrite.split_loops import loops_split_together, with_split_loops
from jaxckpt.trace import trace_step
from tests.scanned import (
    X,
    accumulated,
    assert_close,
    assert_same_bits,
    body_of,
    flax_step,
    layer,
    make_step,
    noisy_step,
    over_two_devices,
    scans,
    weights,
)

LENGTH = 5
W = weights(LENGTH)


def split(step, *args, lengths=(3, 2), group=0):
    traced = trace_step(step, *args)
    loops = loops_split_together(traced)[group]
    return with_split_loops(traced, (LoopSplit(loop=loops[0], lengths=lengths),))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lengths", [(3, 2), (1, 4), (1, 2, 2), (1, 1, 1, 1, 1)], ids=str)
def test_each_part_is_a_scan_in_the_order_of_iterations(lengths, reverse):
    step = make_step(reverse=reverse)
    made = split(step, W, X, lengths=lengths)
    turned = tuple(reversed(lengths))
    forward, backward = (turned, lengths) if reverse else (lengths, turned)
    assert [scan.params["length"] for scan in scans(made.traced.jaxpr)] == [*forward, *backward]
    assert [loop.length for loop in made.traced.graph.loops] == [*lengths, *lengths]
    assert_same_bits(step, (W, X), made.traced)


def test_no_part_cuts_or_joins_parameters_and_gradients():
    jaxpr = split(make_step(), W, X).traced.jaxpr
    assert not {eqn.primitive.name for eqn in open_jaxpr(jaxpr).eqns} & {"slice", "concatenate", "dynamic_slice"}
    for scan in scans(jaxpr):
        assert W.shape in {v.aval.shape for v in scan.invars}
        assert "dynamic_slice" in {eqn.primitive.name for eqn in body_of(scan).eqns}
    first, second = scans(jaxpr)[2:]
    (handed,) = (v for v in first.outvars if v.aval.shape == W.shape)
    assert handed in second.invars
    assert "dynamic_update_slice" in {eqn.primitive.name for eqn in body_of(second).eqns}
    assert [v.aval.shape for v in second.outvars].count(W.shape) == 1


def test_residual_stacks_are_as_long_as_their_part():
    made = split(make_step(), W, X)
    one, other, *_ = scans(made.traced.jaxpr)
    for scan, length in ((one, 3), (other, 2)):
        stacked = [v.aval.shape for v in scan.outvars if v.aval.ndim == 3]
        assert stacked
        assert set(stacked) == {(length, *X.shape)}
    graph = made.traced.graph
    held = {
        graph.saved_instances[v]
        for op in graph.ops
        if op.phase is Phase.FORWARD and op.loop is not None
        for v in op.writes
    }
    assert held == {3, 2}


def test_each_value_of_a_body_exists_once_in_every_part():
    made = split(make_step(), W, X, lengths=(1, 2, 2))
    whole, graph = trace_step(make_step(), W, X).graph, made.traced.graph
    for value, copies in enumerate(made.values):
        producer = whole.producer[value]
        inside = producer is not None and whole.ops[producer].loop is not None
        assert len(copies) == (3 if inside else 1)
        assert {str(graph.values[copy]) for copy in copies} == {str(whole.values[value])}
        loops = [graph.ops[graph.producer[copy]].loop for copy in copies if graph.producer[copy] is not None]
        assert loops == sorted(loops, key=lambda loop: -1 if loop is None else loop)
    for op, copies in enumerate(made.ops):
        assert {graph.ops[copy].primitive for copy in copies} == {whole.ops[op].primitive}
        assert {graph.ops[copy].phase for copy in copies} == {whole.ops[op].phase}


def test_a_stack_is_one_op_that_reads_all_parts():
    def figures(x, w):
        x, _ = layer(x, w)
        return x, x

    def loss(w, x):
        _, ys = jax.lax.scan(figures, x, w)
        return (ys**2).sum(), ys

    step = jax.value_and_grad(loss, has_aux=True)
    made = split(step, W, X)
    stacks = [op for op in made.traced.graph.ops if op.primitive == STACK]
    assert stacks
    assert {len(op.reads) for op in stacks} == {2}
    forward = scans(made.traced.jaxpr)[1]
    assert (LENGTH, *X.shape) in {v.aval.shape for v in forward.outvars}
    assert_same_bits(step, (W, X), made.traced)


def test_layers_of_a_flax_module_are_split():
    step, args = flax_step(LENGTH)
    made = split(step, *args, lengths=(2, 3))
    assert [scan.params["length"] for scan in scans(made.traced.jaxpr)] == [2, 3, 3, 2]
    scopes = Counter(op.scope for op in trace_step(step, *args).graph.ops if op.loop is not None)
    assert {op.scope for op in made.traced.graph.ops if op.loop is not None} == set(scopes)
    assert_same_bits(step, args, made.traced)


def test_keys_are_sliced_in_the_body():
    step, args = noisy_step(LENGTH)
    made = split(step, *args)
    assert len(scans(made.traced.jaxpr)) == 4
    assert_close(step, args, made.traced)


def test_loops_around_a_gradient_are_not_split():
    xs = jnp.stack([X, 2 * X])
    traced = trace_step(accumulated, W, xs)
    around = next(loop.id for loop in traced.graph.loops if loop.length == 2)
    assert all(around not in loops for loops in loops_split_together(traced))
    made = split(accumulated, W, xs)
    (outer,) = scans(made.traced.jaxpr)
    inner = [eqn.params["length"] for eqn in body_of(outer).eqns if eqn.primitive.name == "scan"]
    assert inner == [3, 2, 2, 3]
    assert_same_bits(accumulated, (W, xs), made.traced)


def test_an_array_over_several_devices_keeps_its_split():
    args = over_two_devices(LENGTH)
    step = make_step()
    made = split(step, *args)
    whole, graph = trace_step(step, *args).graph, made.traced.graph
    assert any(value.split for value in whole.values)
    for value, copies in enumerate(made.values):
        assert {graph.values[copy].split for copy in copies} == {whole.values[value].split}
        assert {graph.values[copy].size_bytes for copy in copies} == {whole.values[value].size_bytes}
    assert_close(step, args, made.traced)


@pytest.mark.parametrize(
    "loop_splits",
    [
        (LoopSplit(loop=0, lengths=(3, 3)),),
        (LoopSplit(loop=0, lengths=(5, 0)),),
        (LoopSplit(loop=7, lengths=(3, 2)),),
        (LoopSplit(loop=0, lengths=(3, 2)), LoopSplit(loop=1, lengths=(2, 3))),
    ],
    ids=["too many turns", "no turns", "no such loop", "a loop and its backward in two ways"],
)
def test_parts_that_do_not_make_the_loop_are_refused(loop_splits):
    traced = trace_step(make_step(), W, X)
    with pytest.raises(PlanMismatchError, match=r"loop 0 of 5 iterations"):
        with_split_loops(traced, loop_splits)


def test_a_loop_and_one_inside_of_it_are_not_both_split():
    def outer(x, w):
        return jax.lax.scan(lambda x, _: layer(x, w), x, None, length=2)

    traced = trace_step(make_step(outer), W, X)
    one, other = (
        LoopSplit(loop=loops[0], lengths=(1, traced.graph.loops[loops[0]].length - 1))
        for loops in loops_split_together(traced)
    )
    with_split_loops(traced, (one,))
    with_split_loops(traced, (other,))
    for both in ((one, other), (other, one)):
        with pytest.raises(PlanMismatchError, match="cannot be split like that"):
            with_split_loops(traced, both)


def test_nothing_to_split_is_the_step_itself():
    traced = trace_step(make_step(), W, X)
    made = with_split_loops(traced, ())
    assert made.traced is traced
    assert made.values == tuple((i,) for i in range(len(traced.graph.values)))
    assert made.ops == tuple((i,) for i in range(len(traced.graph.ops)))
