"""Scopes in scopes: the inner one decides about what stands in it."""

import jax
import jax.numpy as jnp
import pytest

import jaxckpt
from jaxckpt import scope
from tests.annotate.residuals import DOTS, SAVE_ALL, SAVE_NOTHING, assert_same, count, kept, policy

X = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)
TANHS = policy('primitive = "tanh"')


def nest(inner, outer):
    part = scope(lambda x: jnp.tanh(jnp.tanh(x * 2) * 3) * 2, policy=inner)
    return scope(lambda x: jnp.exp(part(x * 2) * 5) * 3, policy=outer)


def plain(x):
    return jnp.exp(jnp.tanh(jnp.tanh(x * 4) * 3) * 10) * 3


def held(inner, outer):
    return kept(lambda x: nest(inner, outer)(x).sum(), X)["float32[3,4]"]


def test_values_saved_by_an_inner_scope_stay_saved():
    assert held(TANHS, SAVE_NOTHING) == 2
    assert held(SAVE_NOTHING, SAVE_NOTHING) == 0


def test_values_unsaved_by_an_inner_scope_stay_unsaved():
    all_but_exp = policy('primitive = "exp"\ndecision = "recompute"', default="save")
    both, none = (held(inner, all_but_exp) for inner in (TANHS, SAVE_NOTHING))
    assert both > none
    found = count(jax.grad(lambda x: nest(SAVE_NOTHING, all_but_exp)(x).sum()), X)
    assert found["tanh"] == 4


def test_an_inner_scope_that_saves_everything_does_so():
    assert held(SAVE_ALL, SAVE_NOTHING) >= 2
    assert count(jax.grad(lambda x: nest(SAVE_ALL, SAVE_NOTHING)(x).sum()), X)["tanh"] == 2


@pytest.mark.parametrize("outer", [SAVE_NOTHING, SAVE_ALL, TANHS, DOTS], ids=["nothing", "all", "tanh", "dots"])
@pytest.mark.parametrize("inner", [SAVE_NOTHING, SAVE_ALL, TANHS], ids=["nothing", "all", "tanh"])
def test_values_and_gradients_are_the_same(inner, outer):
    if outer is DOTS:
        with pytest.raises(jaxckpt.PolicyError, match="contraction"):
            nest(inner, outer)(X)
        return
    assert_same(
        jax.value_and_grad(lambda x: nest(inner, outer)(x).sum())(X), jax.value_and_grad(lambda x: plain(x).sum())(X)
    )


def test_an_inner_scope_overrules_rules_of_the_outer_one():
    assert held(SAVE_NOTHING, TANHS) == 0


def test_a_with_inside_a_function_decides_for_its_part():
    @scope(policy=SAVE_NOTHING)
    def part(x):
        x = jnp.tanh(x * 2)
        with scope("tail", policy=TANHS):
            return jnp.tanh(x * 3) * 2

    assert kept(lambda x: part(x).sum(), X)["float32[3,4]"] == 1


def test_the_users_own_checkpoint_inside_stays_what_it_is():
    @scope(policy=policy('primitive = "exp"'))
    def part(x):
        return jnp.exp(jax.checkpoint(lambda x: jnp.tanh(jnp.tanh(x)))(x) * 2) * 3

    assert count(jax.grad(lambda x: part(x).sum()), X)["exp"] == 1
    assert_same(
        jax.grad(lambda x: part(x).sum())(X), jax.grad(lambda x: (jnp.exp(jnp.tanh(jnp.tanh(x)) * 2) * 3).sum())(X)
    )


def test_an_inner_scope_of_another_layer_decides_once():
    early = policy('layers = "0-1"\nprimitive = "tanh"')
    blocks = [scope(lambda x: jnp.tanh(x * 2) * 3, policy=early, name=f"block_{layer}") for layer in range(4)]
    last = scope(lambda x: blocks[3](x) * 2, policy=SAVE_NOTHING)
    assert count(jax.grad(lambda x: last(x).sum()), X)["tanh"] == 2
    assert count(jax.grad(lambda x: blocks[1](x).sum()), X)["tanh"] == 1
