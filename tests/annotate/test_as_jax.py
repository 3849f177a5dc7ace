"""`policy.as_jax()` decides in the user's own `jax.checkpoint`, and refuses what it cannot say there."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

import jaxckpt
from tests.annotate.residuals import DOTS, SAVE_ALL, SAVE_NOTHING, assert_same, kept, policy

X = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)
W = jnp.linspace(0.1, 0.9, 16).reshape(4, 4)
UNBATCHED = policy('primitive = "contraction"\nbatched = false')


def block(x, w):
    hidden = jaxckpt.name(jnp.tanh(x @ w), "hidden")
    return jnp.einsum("bi,bj->bij", jnp.sin(hidden) @ w, hidden).astype(jnp.bfloat16).sum(1).astype(jnp.float32)


def loss(chosen):
    part = jax.checkpoint(block, policy=chosen)
    return lambda x, w: part(x, w).sum()


@pytest.mark.parametrize(
    ("chosen", "jax_s"),
    [
        (SAVE_NOTHING, jax.checkpoint_policies.nothing_saveable),
        (SAVE_ALL, jax.checkpoint_policies.everything_saveable),
        (DOTS, jax.checkpoint_policies.dots_saveable),
        (
            policy('primitive = "contraction"\nbatched = false'),
            jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        ),
        (policy('name = "hidden"'), jax.checkpoint_policies.save_only_these_names("hidden")),
        (policy('name = "hid*"'), jax.checkpoint_policies.save_only_these_names("hidden")),
        (policy('name = "other"'), jax.checkpoint_policies.save_only_these_names("other")),
    ],
    ids=["nothing", "everything", "dots", "unbatched dots", "name", "glob", "other name"],
)
def test_it_keeps_what_jax_s_policy_keeps(chosen, jax_s):
    assert kept(loss(chosen.as_jax()), X, W) == kept(loss(jax_s), X, W)
    assert_same(jax.grad(loss(chosen.as_jax()))(X, W), jax.grad(loss(jax_s))(X, W))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ('primitive = "tanh"\nmin_bytes = 48', 1),
        ('primitive = "tanh"\nmin_bytes = 49', 0),
        ('primitive = "dot_general"\nmin_flops = 96', 2),
        ('primitive = "dot_general"\nmin_flops = 97', 0),
        ('primitive = "tanh"\ndtype = "float32"', 1),
        ('primitive = "tanh"\ndtype = "bfloat16"', 0),
        ('primitive = "tanh"\nrandom = false\ncollective = false', 1),
    ],
)
def test_sizes_types_and_traits_are_those_of_the_result(rule, expected):
    assert kept(loss(policy(rule).as_jax()), X, W).get("float32[3,4]", 0) == expected


def test_an_offloaded_value_is_jax_s():
    offloaded = policy('name = "hidden"\ndecision = "offload"').as_jax()
    assert any("host" in shape for shape in kept(loss(offloaded), X, W))


def test_equal_policies_give_equal_callables():
    one, other = (policy('name = "hidden"').as_jax() for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != DOTS.as_jax()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[rule]]\nscope = "a"\ndecision = "save"', "rule 1 .*asks for scope"),
        ('[[rule]]\nlayers = "1"\ndecision = "save"', "asks for layers"),
        ('[[rule]]\nevery = 2\ndecision = "save"', "asks for every"),
        ('[[rule]]\nboundary = "input"\ndecision = "save"', "asks for boundary"),
        ('[[rule]]\nname = "a"\ndecision = "partition"\naxis = "x"\ndim = 0', "partitions"),
        ('[regions]\nscope = "*"', "regions"),
    ],
)
def test_rules_that_jax_cannot_take_are_refused_with_advice(text, said):
    with pytest.raises(jaxckpt.PolicyError, match=said) as caught:
        jaxckpt.Policy.from_toml(text).as_jax()
    assert "jaxckpt.scope" in str(caught.value)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: x * jax.random.bernoulli(jax.random.key(0), 0.5, x.shape),
        lambda x: x * jax.random.uniform(jax.random.key(0), x.shape),
        lambda x: (jax.debug.callback(lambda: None), jnp.sin(x) * x)[1],
    ],
    ids=["bernoulli", "uniform", "an effect"],
)
def test_equations_that_only_change_weak_types_or_have_effects_are_no_values(draw):
    saved = jaxckpt.Policy.from_toml('default = "recompute"\n[[rule]]\nmin_bytes = 1\ndecision = "save"\n').as_jax()

    def gradient(function):
        return jax.grad(lambda x: (function(x) ** 2).sum())(X)

    assert jnp.array_equal(gradient(jax.checkpoint(draw, policy=saved)), gradient(draw))


@pytest.mark.parametrize("function", [jax.nn.relu, jax.nn.softplus, jax.nn.gelu, lambda x: jnp.logaddexp(x, 1.0)])
def test_rules_on_sizes_decide_about_calls_with_their_own_derivative(function):
    large = policy("min_bytes = 4").as_jax()
    with_policy = jax.checkpoint(lambda x: function(jnp.sin(x)), policy=large)
    assert_same(jax.grad(lambda x: with_policy(x).sum())(X), jax.grad(lambda x: function(jnp.sin(x)).sum())(X))


def test_rules_on_sizes_decide_about_what_devices_exchange():
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

    def summed(x):
        return jax.lax.psum(jnp.sin(x), "d") * jnp.cos(x)

    def loss(part):
        shards = jax.shard_map(part, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec("d"))
        return lambda x: shards(x).sum()

    large = policy("min_bytes = 4").as_jax()
    assert_same(jax.grad(loss(jax.checkpoint(summed, policy=large)))(X), jax.grad(loss(summed))(X))
