"""OneFlow's static activation checkpointing, feature by feature: what is computed again, what is not, and when."""

import re
from itertools import pairwise

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest

import jaxckpt
from jaxckpt.machine import targets
from jaxckpt.report import render_text, report_of
from jaxckpt.trace import trace_step
from tests.annotate.residuals import assert_same
from tests.seeds.nets import W, X, again, counted, equations, layers, regions, saved

GPU = any(status.name == "h200" and status.usable for status in targets())


### What is in a region, and what is not


def normalised(w, x, running):
    """A step whose one region has a batch normalisation with a running mean in the middle."""

    def loss(w):
        with jax.named_scope("body"):
            y = jnp.tanh(x @ w) @ w
            with jax.named_scope("statistics"):
                mean = y.mean(0)
                y = (y - mean) * jax.lax.rsqrt(y.var(0) + 1e-5)
                state = 0.9 * running + 0.1 * jax.lax.stop_gradient(mean)
            return (jnp.sin(y @ w) ** 2).sum(), state

    return jax.value_and_grad(loss, has_aux=True)(w)


def test_an_excluded_normalisation_runs_once():
    args = (W, X, jnp.zeros(4))
    assert again(normalised, regions("*body"), *args)["rsqrt"] == 1
    kept = regions("*body", exclude=("*statistics",))
    added = again(normalised, kept, *args)
    assert (added["rsqrt"], added["reduce_sum"], added["tanh"]) == (0, 0, 1)
    (_, state), _ = jax.jit(jaxckpt.apply(normalised, kept))(*args)
    np.testing.assert_allclose(state, 0.1 * (jnp.tanh(X @ W) @ W).mean(0), rtol=1e-6)


def split(w, x):
    """One region with a sine in the middle, between two halves."""

    def loss(w, x):
        with jax.named_scope("body"):
            y = jnp.exp(jnp.tanh(x @ w) @ w)
            with jax.named_scope("middle"):
                y = jnp.sin(y @ w)
            return (jnp.exp(jnp.tanh(y @ w) @ w) ** 2).sum()

    return jax.grad(loss, argnums=(0, 1))(w, x)


def test_an_excluded_op_splits_its_region():
    whole, halves = regions("*body"), regions("*body", exclude=("*middle",))
    assert saved(split, whole, W, X) == []
    assert saved(split, halves, W, X) == ["body/exp", "body/middle/sin"]
    assert again(split, whole, W, X)["sin"] == 1
    assert again(split, halves, W, X)["sin"] == 0
    assert_same(jax.jit(jaxckpt.apply(split, halves))(W, X), split(W, X))


def test_neighbouring_regions_save_the_one_array_between_them():
    assert saved(layers(4), regions("block_*"), W, X) == [f"block_{n}/dot_general" for n in range(3)]


def test_a_region_that_the_backward_ignores_runs_once():
    def loss(w, x):
        with jax.named_scope("read"):
            y = jnp.tanh(jnp.tanh(x @ w) @ w)
        with jax.named_scope("linear"):
            return (y * 2.0 + 1.0).sum()

    step = jax.grad(loss)
    with pytest.raises(jaxckpt.PolicyError, match="hold nothing that the backward reads"):
        counted(step, regions("*linear"), W, X)
    assert again(step, regions("*{read,linear}"), W, X) == again(step, regions("*read"), W, X)


def test_parameters_and_arguments_are_no_part_of_a_region():
    graph = trace_step(layers(2), W, X).graph
    decided = {each.value.value for each in jaxckpt.explain(layers(2), W, X, policy="nothing").values}
    assert not decided & {*graph.inputs, *graph.constants}


### How often, and when


@pytest.mark.parametrize("marked", ["0", "0-1", "0-2"])
def test_the_forward_runs_twice_in_a_region_and_once_elsewhere(marked):
    number = {"0": 1, "0-1": 2, "0-2": 3}[marked]
    policy = regions("block_{" + ",".join(map(str, range(number))) + ",x}")
    step = layers(3)
    added = again(step, policy, W, X)
    assert (added["tanh"], added["sin"]) == (number, number)
    assert counted(step, None, W, X)["tanh"] == 3


def test_a_switch_on_k_of_l_blocks_keeps_k_blocks_less():
    args = (jax.ShapeDtypeStruct((256, 256), jnp.float32), jax.ShapeDtypeStruct((1 << 14, 256), jnp.float32))
    step = layers(4)

    def kept(number):
        policy = regions("block_{" + ",".join(map(str, range(number))) + ",x}")
        values = jaxckpt.explain(step, *args, policy=policy).values
        return sum(e.value.size_bytes for e in values if type(e.carried_out).__name__ != "Recompute" and e.value.scope)

    one, two, three = kept(1), kept(2), kept(3)
    assert one - two == two - three > 0


def test_what_runs_again_is_named_so_in_the_compiled_program():
    text = jax.jit(jaxckpt.apply(layers(2), regions("block_1"))).lower(W, X).compile().as_text()
    clones = set(re.findall(r'op_name="[^"]*?(block_\d)\)?/rematted_computation/([a-z_]+)"', text))
    assert ("block_1", "tanh") in clones
    assert {block for block, _ in clones} == {"block_1"}
    assert "rematted_computation" not in jax.jit(layers(2)).lower(W, X).compile().as_text()


def test_a_region_is_recomputed_right_before_its_reader():
    order = list(equations(jaxckpt.apply(layers(3), regions("block_*")), W, X))
    late = {v for eqn in order if "transpose(" in str(eqn.source_info.name_stack) for v in eqn.outvars}
    starts = [
        barrier
        for barrier, follower in pairwise(order)
        if barrier.primitive.name == "optimization_barrier"
        and "rematted_computation" in str(follower.source_info.name_stack)
    ]
    assert len(starts) == 3
    assert all(late.intersection(v for v in barrier.invars if isinstance(v, jex.Var)) for barrier in starts)


@pytest.mark.skipif(not GPU, reason="no compile-only GPU")
def test_without_the_wait_the_compiler_would_undo_it():
    args = (jax.ShapeDtypeStruct((512, 512), jnp.float32), jax.ShapeDtypeStruct((1 << 14, 512), jnp.float32))

    def merged(w, x):
        def block(x):
            return jnp.sin(jnp.tanh(x @ w)) @ w

        for _ in range(4):
            x = jax.checkpoint(block, prevent_cse=False)(x)
        return (x**2).sum()

    tied = jaxckpt.footprint(jaxckpt.apply(layers(4), regions("block_*")), *args, target="h200")
    untied = jaxckpt.footprint(jax.value_and_grad(merged, argnums=(0, 1)), *args, target="h200")
    assert tied.temp_bytes < 0.8 * untied.temp_bytes


### Random draws, and no gradient


def dropped(w, x, one, two):
    """Two dropouts, each with a key; also what they let through."""

    def loss(x):
        with jax.named_scope("body"):
            first = jnp.where(jax.random.bernoulli(one, 0.5, x.shape), jnp.exp(x), 0.0)
            second = jnp.where(jax.random.bernoulli(two, 0.5, x.shape), jnp.exp(x), 0.0)
            return (first + 3 * second).sum(), (first != 0, second != 0)

    return jax.grad(loss, has_aux=True)(x)


def test_the_backward_sees_the_mask_of_the_forward_bit_for_bit():
    keys = jax.random.split(jax.random.key(0))
    assert again(dropped, regions("*body"), W, X, *keys)["random_bits"] == 2
    gradient, (first, second) = jax.jit(jaxckpt.apply(dropped, regions("*body")))(W, X, *keys)
    np.testing.assert_allclose(gradient, jnp.exp(X) * (first + 3.0 * second), rtol=1e-6)
    assert (first != second).any()
    _, (same, also) = jax.jit(jaxckpt.apply(dropped, regions("*body")))(W, X, keys[0], keys[0])
    assert (same == also).all()


def test_masks_are_kept_on_request():
    keys = jax.random.split(jax.random.key(0))
    kept = regions("*body", recompute_random=False)
    assert again(dropped, kept, W, X, *keys)["random_bits"] == 0
    assert_same(jax.jit(jaxckpt.apply(dropped, kept))(W, X, *keys), dropped(W, X, *keys))


def test_inference_is_left_as_it_is():
    @jaxckpt.scope(policy=regions("*"))
    def block(x, w):
        return jnp.sin(jnp.tanh(x @ w))

    def region(x, w):
        with jaxckpt.scope("part", policy=regions("*")):
            return jnp.sin(jnp.tanh(x @ w))

    plain = jax.make_jaxpr(lambda x, w: jnp.sin(jnp.tanh(x @ w)))(X, W)
    names = [eqn.primitive.name for eqn in plain.jaxpr.eqns]
    assert [eqn.primitive.name for eqn in jax.make_jaxpr(region)(X, W).jaxpr.eqns] == names
    with pytest.raises(jaxckpt.NoGradientError):
        jaxckpt.apply(region)(X, W)


### What it says


def test_saved_values_are_listed_with_their_reason():
    shown = render_text(report_of(jaxckpt.explain(layers(3), W, X, policy=regions("block_*"))), width=200)
    (row,) = (line for line in shown.splitlines() if "save" in line and "dot_general" in line)
    for said in ("block_*", "0-1", "float32[8,4] dot_general", "256 B", "it crosses to a later stage"):
        assert said in row
