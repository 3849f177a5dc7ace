"""Scopes and `policy.as_jax()` under JAX's new checkpoint, which only asks about names and products."""

import jax
import jax.numpy as jnp
import pytest

import jaxckpt
from jaxckpt import scope
from tests.annotate.residuals import DOTS, SAVE_NOTHING, assert_same, kept, policy

X = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)
W = jnp.linspace(0.1, 0.9, 16).reshape(4, 4)

pytestmark = pytest.mark.skipif(not hasattr(jax.config, "jax_remat3"), reason="this jax has no jax_remat3")


@pytest.fixture(scope="module", autouse=True)
def remat3():
    jax.config.update("jax_remat3", True)
    jax.clear_caches()
    yield
    jax.config.update("jax_remat3", False)
    jax.clear_caches()


def only_names():
    return type(jax.checkpoint_policies.save_only_these_names("a")).__name__ == "SaveOnlyTheseNames"


def block(x, w):
    return jaxckpt.name(jnp.exp(jnp.tanh(x @ w) @ w), "out") @ w


def loss(part):
    return lambda x, w: part(x, w).sum()


@pytest.mark.parametrize(
    ("chosen", "arrays"),
    [
        (SAVE_NOTHING, 0),
        (DOTS, 2),
        (policy('name = "out"'), 1),
        (policy('primitive = "tanh"'), 1),
        (policy('name = "out"\ndecision = "offload"'), 0),
    ],
    ids=["nothing", "dots", "name", "tanh", "offload"],
)
def test_a_scope_keeps_the_same_as_ever(chosen, arrays):
    part = scope(block, policy=chosen)
    if only_names() and "offload" in chosen.to_toml():
        with pytest.raises(jaxckpt.UnsupportedDecisionError, match="by name"):
            part(X, W)
        return
    assert kept(loss(part), X, W).get("float32[3,4]", 0) == arrays
    assert_same(jax.grad(loss(part), argnums=(0, 1))(X, W), jax.grad(loss(block), argnums=(0, 1))(X, W))


def test_nested_scopes_keep_what_the_inner_one_saves():
    if only_names():
        pytest.skip("jax_remat3 of jax 0.10 computes an inner checkpoint again, whatever its policy")
    inner = scope(lambda x: jnp.tanh(jnp.tanh(x * 2) * 3), policy=policy('primitive = "tanh"'))
    outer = scope(lambda x: jnp.exp(inner(x * 2)) * 3, policy=SAVE_NOTHING)
    assert kept(lambda x: outer(x).sum(), X)["float32[3,4]"] == 2


def test_a_list_of_names_is_a_callable():
    part = jax.checkpoint(block, policy=policy('name = "out"').as_jax())
    assert kept(loss(part), X, W)["float32[3,4]"] == 1


@pytest.mark.parametrize("text", ['default = "save"', '[[rule]]\nprimitive = "tanh"\ndecision = "save"'])
def test_what_it_does_not_ask_about_is_refused(text):
    with pytest.raises(jaxckpt.PolicyError, match="jax_remat3"):
        jaxckpt.Policy.from_toml(text).as_jax()


def test_products_are_a_callable_where_it_asks_about_them():
    if only_names():
        with pytest.raises(jaxckpt.PolicyError, match="more than a name"):
            DOTS.as_jax()
        return
    assert kept(loss(jax.checkpoint(block, policy=DOTS.as_jax())), X, W)["float32[3,4]"] == 2
