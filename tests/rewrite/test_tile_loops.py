"""Loop tiling: a loop over tiles and one over the iterations of a tile, with the numbers of the step."""

from collections import Counter

import jax
import jax.numpy as jnp
import pytest

from jaxckpt import PlanMismatchError
from jaxckpt.ir import LoopSplit, LoopTiling, Phase
from jaxckpt.ir.regions import CARRY, STACK
from jaxckpt.machine import Target
from jaxckpt.program.inline import open_jaxpr
from jaxckpt.rewrite.split_loops import with_split_loops
from jaxckpt.rewrite.tile_loops import tileable_loops, with_tiled_loops
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

LENGTH = 6
W = weights(LENGTH)


def nest(traced, outer=3, inner=2, group=0):
    return with_tiled_loops(traced, (LoopTiling(loop=tileable_loops(traced)[group][0], outer=outer, inner=inner),))


def made_of(step, *args, **pair):
    return nest(trace_step(step, *args), **pair).traced


def tree(jaxpr):
    """The lengths of scans, each with those in its body."""
    return [(eqn.params["length"], tree(body_of(eqn))) for eqn in scans(jaxpr)]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("outer", "inner"), [(3, 2), (2, 3)])
def test_the_backward_reruns_each_tile_before_its_own_iterations(outer, inner, reverse):
    step = make_step(reverse=reverse)
    made = made_of(step, W, X, outer=outer, inner=inner)
    assert tree(made.jaxpr) == [(outer, [(inner, [])]), (outer, [(inner, []), (inner, [])])]
    forward, backward = scans(made.jaxpr)
    assert (forward.params["reverse"], backward.params["reverse"]) == (reverse, not reverse)
    assert [scan.params["reverse"] for scan in scans(body_of(backward))] == [reverse, not reverse]
    assert [loop.is_clone for loop in made.graph.loops] == [False, False, False, True, False]
    assert_same_bits(step, (W, X), made)


def test_no_tile_cuts_or_joins_parameters_and_gradients():
    jaxpr = made_of(make_step(), W, X).jaxpr
    for level in (open_jaxpr(jaxpr), *map(body_of, scans(jaxpr))):
        names = {eqn.primitive.name for eqn in level.eqns}
        assert not names & {"slice", "concatenate", "dynamic_slice", "dynamic_update_slice", "reshape"}
    for scan in scans(jaxpr):
        for turns in scans(body_of(scan)):
            assert W.shape in {v.aval.shape for v in turns.invars}
            assert "dynamic_slice" in {eqn.primitive.name for eqn in body_of(turns).eqns}
    *_, backward = scans(body_of(scans(jaxpr)[1]))
    assert "dynamic_update_slice" in {eqn.primitive.name for eqn in body_of(backward).eqns}


def test_the_carry_is_kept_for_every_tile_and_residuals_for_one():
    made = made_of(make_step(), W, X)
    graph = made.graph
    (begins,) = (op.writes[0] for op in graph.ops if op.primitive == CARRY and op.loop == 0)
    assert graph.saved_instances[begins] == 3
    (forward,) = (eqn for eqn in scans(made.jaxpr) if not eqn.params["reverse"])
    assert [v.aval.shape for v in forward.outvars if v.aval.ndim == 3] == [(3, *X.shape)]
    left = {v for op in graph.ops if op.loop == 3 and op.phase is Phase.FORWARD for v in op.writes}
    read = {v for op in graph.ops if op.loop == 4 for v in op.reads} & left
    assert read
    assert {graph.saved_instances[v] for v in read} == {2}
    assert not {v for op in graph.ops if op.loop == 1 for v in op.writes} & {
        v for op in graph.ops if op.phase is Phase.BACKWARD for v in op.reads
    }


def test_values_of_a_forward_body_have_a_clone_if_read():
    traced = trace_step(make_step(), W, X)
    made = nest(traced)
    late = {v for op in traced.graph.ops if op.phase is Phase.BACKWARD for v in op.reads}
    graph = made.traced.graph
    for value, copies in enumerate(made.values):
        producer = traced.graph.producer[value]
        if producer is not None and traced.graph.ops[producer].loop == 0 and value in late:
            assert graph.loops[graph.ops[graph.producer[copies[-1]]].loop].is_clone
        assert {str(graph.values[copy]) for copy in copies} == {str(traced.graph.values[value])}
    assert all(graph.readers[v] or v in graph.outputs for op in graph.ops if not op.effects for v in op.writes)


def test_scopes_are_those_of_the_step():
    step, args = flax_step(LENGTH)
    traced = trace_step(step, *args)
    made = nest(traced).traced
    whole = Counter(op.scope for op in traced.graph.ops if op.loop is not None and op.phase is Phase.FORWARD)
    again = {op.scope for op in made.graph.ops if op.loop is not None and made.graph.loops[op.loop].is_clone}
    assert again <= set(whole)
    assert any(scope.endswith("LayerNorm_0") for scope in again)
    assert_same_bits(step, args, made)


def test_loops_are_tiled_within_a_mesh_on_which_nothing_can_run():
    step, args = make_step(layer), (W, X)
    traced = trace_step(step, *args)
    with jax.set_mesh(Target("h200").mesh((1,), ("data",))):
        made = nest(traced).traced
    assert_same_bits(step, args, made)


def test_outputs_of_iterations_are_stacked_into_one_array():
    def figures(x, w):
        x, _ = layer(x, w)
        return x, (x, x.sum())

    def loss(w, x):
        _, (ys, sums) = jax.lax.scan(figures, x, w)
        return (ys**2).sum() + sums.prod(), (ys, sums)

    step = jax.value_and_grad(loss, has_aux=True)
    made = made_of(step, W, X)
    assert {op.loop for op in made.graph.ops if op.primitive == STACK} == {None}
    forward = scans(made.jaxpr)[0]
    assert {(LENGTH, *X.shape), (LENGTH,)} <= {v.aval.shape for v in forward.outvars}
    assert_same_bits(step, (W, X), made)


def test_scanned_arrays_need_be_no_parameters():
    def loss(w, x, scale):
        mask = jnp.cos(x) > jnp.tanh(scale)
        noise = jnp.sin(jnp.cumsum(w, axis=0))

        def turn(carry, each):
            weights, noisy = each
            hidden = jnp.where(mask, jnp.tanh(carry @ weights), noisy[:2]) * jnp.exp(scale)
            return carry + hidden, hidden.mean()

        x, means = jax.lax.scan(turn, x, (w, noise))
        return (x**2).sum() + means.max()

    args = (W, X, jnp.float32(0.3))
    step = jax.value_and_grad(loss, (0, 1, 2))
    assert_same_bits(step, args, made_of(step, *args))


def test_a_mask_that_iterations_read_is_recomputed_in_the_clone():
    rows = 64
    x = jnp.sin(jnp.arange(rows * rows, dtype=jnp.float32)).reshape(rows, rows)

    def loss(w, x):
        mask = jnp.tril(jnp.ones((rows, rows), bool))
        return (jax.lax.scan(lambda x, w: (jnp.tanh(jnp.where(mask, x, 0.0) * w), None), x, w)[0] ** 2).sum()

    args = (jnp.linspace(0.5, 1.0, LENGTH), x)
    step = jax.value_and_grad(loss)
    made = made_of(step, *args)
    graph = made.graph
    copy = next(loop.id for loop in graph.loops if loop.is_clone)
    read = {v for op in graph.ops if op.loop == copy for v in op.reads}
    masks = [v for v in read if graph.values[v].shape == x.shape and graph.values[v].dtype == "bool"]
    assert masks
    assert {graph.ops[graph.producer[v]].loop for v in masks} == {copy}
    assert_same_bits(step, args, made)


def test_a_scan_in_a_scan_is_tiled_with_the_body_around():
    def outer(x, w):
        return jax.lax.scan(lambda x, _: layer(x, w), x, None, length=4)

    step = make_step(outer)
    traced = trace_step(step, W, X)
    assert [traced.graph.loops[group[0]].length for group in tileable_loops(traced)] == [LENGTH]
    made = nest(traced, outer=2, inner=3).traced
    turns = (3, [(4, [])])
    assert tree(made.jaxpr) == [(2, [turns]), (2, [turns, turns])]
    assert_same_bits(step, (W, X), made)


def test_clones_draw_the_same_numbers_from_keys_of_layers():
    step, args = noisy_step(LENGTH)
    made = made_of(step, *args)
    assert tree(made.jaxpr) == [(3, [(2, [])]), (3, [(2, []), (2, [])])]
    assert_close(step, args, made)


def test_clones_split_a_carried_key_the_same_way():
    def noisy(carry, w):
        x, key = carry
        key, own = jax.random.split(key)
        return (layer(x * jax.random.uniform(own, x.shape), w)[0], key), None

    def loss(w, key, x):
        return (jax.lax.scan(noisy, (x, key), w)[0][0] ** 2).sum()

    args = (W, jax.random.key(0), X)
    step = jax.value_and_grad(loss)
    assert_close(step, args, made_of(step, *args))


def test_loops_that_share_values_are_tiled_together():
    def above(x, hidden):
        return jnp.tanh(x + hidden.sum(0)), None

    def loss(w, x):
        def below(x, w):
            x, _ = layer(x, w)
            return x, x

        _, ys = jax.lax.scan(below, x, w)
        return (jax.lax.scan(above, x[0], jnp.sin(ys))[0] ** 2).sum() + (
            jax.lax.scan(above, x[0], ys, reverse=True)[0] ** 2
        ).sum()

    step = jax.value_and_grad(loss)
    traced = trace_step(step, W, X)
    assert any(len(group) > 2 for group in tileable_loops(traced))
    group = next(i for i, group in enumerate(tileable_loops(traced)) if len(group) > 2)
    assert_same_bits(step, (W, X), nest(traced, group=group).traced)


def test_an_update_in_a_loop_reads_gradients_of_its_iterations():
    def step(w, x):
        loss, gradients = make_step()(w, x)

        def update(norm, each):
            w, gradient = each
            return norm + (gradient**2).sum(), w - 0.1 * gradient / (1 + norm)

        norm, w = jax.lax.scan(update, jnp.float32(0), (w, gradients))
        return loss, norm, w

    traced = trace_step(step, W, X)
    assert_same_bits(step, (W, X), nest(traced).traced)


def test_loops_around_a_gradient_are_not_tiled():
    xs = jnp.stack([X, 2 * X, X, X / 2])
    traced = trace_step(accumulated, W, xs)
    around = next(loop.id for loop in traced.graph.loops if loop.length == 4)
    assert all(around not in loops for loops in tileable_loops(traced))
    made = nest(traced).traced
    assert tree(made.jaxpr) == [(4, [(3, [(2, [])]), (3, [(2, []), (2, [])])])]
    assert_same_bits(accumulated, (W, xs), made)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_part_of_a_loop_is_tiled(reverse):
    step = make_step(reverse=reverse)
    split = with_split_loops(trace_step(step, W, X), (LoopSplit(loop=0, lengths=(2, 4)),)).traced
    loops = next(group for group in tileable_loops(split) if split.graph.loops[group[0]].length == 4)
    made = with_tiled_loops(split, (LoopTiling(loop=loops[0], outer=2, inner=2),)).traced
    assert sum(length == 2 and bool(within) for length, within in tree(made.jaxpr)) == 2
    assert_same_bits(step, (W, X), made)


def test_an_array_over_several_devices_keeps_its_split():
    args = over_two_devices(LENGTH)
    step = make_step()
    traced = trace_step(step, *args)
    made = nest(traced)
    graph = made.traced.graph
    assert any(value.split for value in traced.graph.values)
    for value, copies in enumerate(made.values):
        assert {graph.values[copy].split for copy in copies} <= {traced.graph.values[value].split}
        assert {graph.values[copy].size_bytes for copy in copies} <= {traced.graph.values[value].size_bytes}
    assert_close(step, args, made.traced)


@pytest.mark.parametrize(
    "asked",
    [
        LoopTiling(loop=0, outer=3, inner=3),
        LoopTiling(loop=0, outer=6, inner=1),
        LoopTiling(loop=0, outer=1, inner=6),
        LoopTiling(loop=7, outer=3, inner=2),
    ],
    ids=["too many turns", "groups of one turn", "one group", "no such loop"],
)
def test_tilings_that_do_not_make_the_loop_are_refused(asked):
    traced = trace_step(make_step(), W, X)
    with pytest.raises(PlanMismatchError, match=r"loop 0 of 6 iterations"):
        with_tiled_loops(traced, (asked,))


def test_a_loop_is_tiled_once():
    traced = trace_step(make_step(), W, X)
    with pytest.raises(PlanMismatchError, match="cannot be tiled like that"):
        with_tiled_loops(traced, (LoopTiling(loop=0, outer=3, inner=2), LoopTiling(loop=1, outer=2, inner=3)))


def test_unrolled_loops_and_bodies_with_effects_are_not_tiled():
    assert not tileable_loops(trace_step(make_step(unroll=LENGTH), W, X))

    def drawing(x, w):
        return layer(x * jax.lax.rng_uniform(jax.lax.stop_gradient(x.min()), 1.0, x.shape), w)

    assert not tileable_loops(trace_step(make_step(drawing), W, X))
    partly = trace_step(make_step(unroll=2), W, X)
    assert [loop.unroll for loop in nest(partly, outer=2, inner=3).traced.graph.loops] == [1, 2, 1, 2, 2]
    assert_same_bits(make_step(unroll=2), (W, X), nest(partly).traced)


@pytest.mark.parametrize("before", [True, False])
def test_branches_beside_a_loop_keep_theirs(before):
    """Loops have other numbers afterwards, and so have the branches of conds, before the loop and behind it."""

    def loss(w, x, which):
        def chosen(x):
            return jax.lax.switch(which, [lambda x: jnp.sin(x @ w[0]), lambda x: jnp.tanh(jnp.cos(x))], x)

        x = chosen(x) if before else x
        x = jax.lax.scan(layer, x, w)[0]
        return ((x if before else chosen(x)) ** 2).sum()

    step, args = jax.value_and_grad(loss), (W, X, jnp.int32(1))
    traced = trace_step(step, *args)
    assert any(loop.branch is not None for loop in traced.graph.loops)
    ((loop, *_),) = tileable_loops(traced)
    assert_same_bits(step, args, nest(traced).traced)
    assert_same_bits(step, args, with_split_loops(traced, (LoopSplit(loop=loop, lengths=(4, 2)),)).traced)


def test_loops_with_branches_in_their_bodies_are_not_tiled():
    def chosen(x, w):
        return jax.lax.cond(x.sum() > 0, lambda x: jnp.sin(x @ w), lambda x: jnp.tanh(jnp.cos(x) @ w), x), None

    traced = trace_step(make_step(chosen), W, X)
    assert any(loop.branch is not None and loop.parent is not None for loop in traced.graph.loops)
    assert tileable_loops(traced) == ()


def test_without_tilings_the_step_is_unchanged():
    traced = trace_step(make_step(), W, X)
    made = with_tiled_loops(traced, ())
    assert made.traced is traced
    assert made.values == tuple((i,) for i in range(len(traced.graph.values)))
