"""What cannot be scoped or decided is refused with what is there instead."""

import jax
import jax.numpy as jnp
import pytest

import jaxckpt
from jaxckpt import scope
from tests.annotate.residuals import DOTS, policy

X = jnp.ones((3, 4))


class Layer:
    def forward(self, x):
        return x


@pytest.mark.parametrize("target", [3, [jnp.sin], X])
def test_what_cannot_be_called_has_no_scope(target):
    with pytest.raises(jaxckpt.ScopeError, match="a function, a method, a class"):
        scope(target, policy=DOTS)


def test_the_closest_method_is_named():
    with pytest.raises(jaxckpt.ScopeError, match=r"methods=\('forward',\)") as caught:
        scope(Layer, policy=DOTS, methods="forwards")
    assert caught.value.method == "forwards"


def test_the_closest_argument_is_named():
    with pytest.raises(jaxckpt.ScopeError, match=r"static_argnames=\('train',\)"):
        scope(lambda x, train: x, policy=DOTS, static_argnames="trian")


def test_a_scope_has_one_name():
    with pytest.raises(jaxckpt.ScopeError, match="two names"):
        scope("a", name="b")


def test_an_unknown_policy_is_refused_where_it_is_written():
    with pytest.raises(jaxckpt.PolicyError, match="dotz"):
        scope(policy="dotz")


def test_a_rule_without_a_match_is_refused_with_a_close_name():
    part = scope(lambda x: jaxckpt.name(jnp.sin(x), "attn_output"), policy=policy('name = "attn_ouput"'), name="block")
    with pytest.raises(jaxckpt.PolicyError, match="the closest name is 'attn_output'") as caught:
        part(X)
    assert "in the scope block" in caught.value.__notes__


def test_a_partition_is_refused():
    part = scope(lambda x: jnp.sin(x), policy=policy('primitive = "sin"\ndecision = "partition"\naxis = "x"\ndim = 0'))
    with pytest.raises(jaxckpt.UnsupportedDecisionError, match=r"jaxckpt\.apply"):
        part(X)


@pytest.mark.parametrize("name", ["", "jaxckpt.save", 3, None])
def test_names_that_are_ours_or_none_are_refused(name):
    with pytest.raises(jaxckpt.ArgumentError, match='"qkv"'):
        jaxckpt.name(X, name)


def test_a_name_is_given_to_every_array_of_a_tree():
    traced = jax.make_jaxpr(lambda x: jaxckpt.name({"a": x, "b": (x + 1, None, "text")}, "pair")["a"])(X)
    named = [eqn.params["name"] for eqn in traced.eqns if eqn.primitive.name == "name"]
    assert named == ["pair", "pair"]


@pytest.mark.parametrize("chosen", [jax.checkpoint_policies.dots_saveable, {"default": "save"}, 3])
def test_what_is_no_policy_is_refused(chosen):
    step, x = jax.grad(lambda x: jnp.sin(jnp.sin(x)).sum()), jnp.ones(3)
    for call in (
        lambda: jaxckpt.apply(step, chosen)(x),
        lambda: jaxckpt.explain(step, x, policy=chosen, target="cpu"),
        lambda: scope(jnp.sin, policy=chosen),
    ):
        with pytest.raises(jaxckpt.PolicyError, match=r"is no policy of jaxckpt[\s\S]*dots"):
            call()


def test_what_was_read_of_another_system_has_the_policy_in_an_attribute():
    with pytest.raises(jaxckpt.PolicyError, match=r"\.policy"):
        jaxckpt.apply(jax.grad(lambda x: jnp.sin(x).sum()), jaxckpt.read_policy("remat_policy: full", "maxtext"))


def test_a_class_without_a_call_has_to_name_its_methods():
    class Block:
        def forward(self, x):
            return x

    with pytest.raises(jaxckpt.ScopeError, match="__call__"):
        scope(Block, policy="nothing")
