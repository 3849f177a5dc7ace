"""Which values a rule matches, and which of several rules decides."""

import dataclasses

import pytest
from hypothesis import given, strategies as st

from jaxckpt import PolicyError
from jaxckpt.ir import Kind, Offload, Phase, Recompute, Save
from jaxckpt.policy import ForwardValue, Match, Policy, Rule, forward_values, resolve
from tests.graphs import Builder

PRODUCT = ForwardValue(
    id=5,
    scope="GPT/block_7/attn/qkv",
    layer=7,
    name="qkv",
    primitive="dot_general",
    dtype="bfloat16",
    size_bytes=1024,
    flops=4096,
    is_residual=True,
)


@pytest.mark.parametrize(
    ("match", "holds"),
    [
        (Match(), True),
        (Match(scope="*/block_*/attn"), True),
        (Match(scope="*/block_*/attn/qkv"), True),
        (Match(scope="GPT"), True),
        (Match(scope="block_7"), False),
        (Match(scope="*/block_?"), True),
        (Match(scope="*/mlp"), False),
        (Match(name="qkv"), True),
        (Match(name="q*"), True),
        (Match(name="k*"), False),
        (Match(name="{qkv,out}"), True),
        (Match(name="{query,key}"), False),
        (Match(name="q{k,}{v,w}"), True),
        (Match(scope="*/{block_{1,7},layer_*}/attn"), True),
        (Match(primitive="{tanh,contraction}"), True),
        (Match(primitive="dot_general"), True),
        (Match(primitive="dot*"), True),
        (Match(primitive="contraction"), True),
        (Match(primitive="elementwise"), False),
        (Match(dtype="bfloat16"), True),
        (Match(dtype="float*"), False),
        (Match(layers="0-3,7"), True),
        (Match(layers="0-3"), False),
        (Match(every=7), True),
        (Match(every=2), False),
        (Match(min_bytes=1024), True),
        (Match(min_bytes=1025), False),
        (Match(max_bytes=1024), True),
        (Match(max_bytes=1023), False),
        (Match(min_flops=4096), True),
        (Match(min_flops=4097), False),
        (Match(name="qkv", layers="1"), False),
    ],
)
def test_every_key_that_is_given_must_hold(match, holds):
    assert match.holds(PRODUCT) is holds


def test_a_value_without_name_or_layer_matches_no_such_rule():
    bare = dataclasses.replace(PRODUCT, name=None, layer=None)
    assert not Match(name="*").holds(bare)
    assert not Match(layers="0-100").holds(bare)
    assert not Match(every=1).holds(bare)


@pytest.mark.parametrize(
    "keys", [{"layers": "x"}, {"layers": "3-1"}, {"every": 0}, {"min_bytes": -1}, {"name": "{a,b}{c,d}" * 9}]
)
def test_a_match_of_nothing_or_far_too_much_is_refused(keys):
    with pytest.raises(ValueError, match=r"layers|every|min_bytes|names|list"):
        Match(**keys)


def layered():
    """Three layers of a product and a tanh, and their backward."""
    build = Builder()
    x, kept = build.input(4096), []
    for layer in range(3):
        x = build.op("dot_general", x, size_bytes=4096, scope=f"net/layer_{layer}/dense", flops=1e6)
        x = build.op("tanh", x, size_bytes=4096, scope=f"net/layer_{layer}")
        kept.append(x)
    g = build.op("dot_general", x, size_bytes=4096, phase=Phase.BACKWARD)
    for value in reversed(kept):
        g = build.op("mul", g, value, size_bytes=4096, phase=Phase.BACKWARD)
    return build.graph(g)


def decided(policy):
    return {each.forward_value.id: (each.decision, each.rule) for each in resolve(policy, layered())}


def test_layers_are_found_in_scopes():
    assert [c.layer for c in forward_values(layered())] == [0, 0, 1, 1, 2, 2]


def test_the_first_matching_rule_decides():
    rules = (
        Rule(match=Match(layers="1"), decision=Save()),
        Rule(match=Match(scope="net/*"), decision=Offload()),
        Rule(match=Match(primitive="tanh"), decision=Recompute()),
    )
    resolved = {each.forward_value.id: each for each in resolve(Policy(rules=rules), layered())}
    tanhs = [value for value, each in resolved.items() if each.forward_value.primitive == "tanh"]
    assert [resolved[v].rule for v in tanhs] == [1, 0, 1]
    assert [resolved[v].others for v in tanhs] == [(2,), (1, 2), (2,)]
    assert resolved[tanhs[1]].decision == Save()


def test_the_default_decides_about_residuals_alone():
    assert {decision for decision, rule in decided(Policy(default="save")).values()} == {Save()}
    assert len(decided(Policy(default="save"))) == 3  # the tanhs; nobody reads the products in the backward


def test_a_rule_on_a_primitive_decides_about_unread_values():
    found = decided(Policy(rules=(Rule(match=Match(primitive="dot_general"), decision=Save()),)))
    assert sum(rule == 0 for _, rule in found.values()) == 3
    broad = decided(Policy(rules=(Rule(match=Match(scope="net/*"), decision=Save()),)))
    assert len(broad) == 3


def test_a_call_of_elementwise_work_is_elementwise():
    """`jax.nn.relu` is a call with its own derivative: a policy that saves opaque ops recomputes such a call."""
    build = Builder()
    x = build.op("custom_jvp_call", build.input(4096), size_bytes=4096, kind=Kind.ELEMENTWISE)
    y = build.op("custom_jvp_call", x, size_bytes=4096, kind=Kind.OPAQUE)
    graph = build.graph(build.op("mul", x, y, size_bytes=4096, phase=Phase.BACKWARD))
    rules = (Rule(match=Match(primitive="opaque"), decision=Save()),)
    resolved = {each.forward_value.id: each.decision for each in resolve(Policy(rules=rules), graph)}
    assert resolved == {x: Recompute(), y: Save()}


@pytest.mark.parametrize(
    ("match", "said"),
    [
        (Match(primitive="dot_genral"), "closest primitive is 'dot_general'"),
        (Match(scope="net/layer_9"), "closest scope is 'net/layer_"),
        (Match(name="qkv"), "nothing here has a name"),
        (Match(primitive="tanh", min_flops=10**9), "nothing here has min_flops = 1000000000"),
        (Match(min_bytes=10**9), "matches nothing"),
        (Match(primitive="tanh", scope="net/layer_0", layers="1"), "though each of its keys does"),
    ],
)
def test_a_rule_that_matches_nothing_is_an_error_with_a_hint(match, said):
    policy = Policy(name="mine", rules=(Rule(decision=Save()), Rule(match=match, decision=Save())))
    with pytest.raises(PolicyError, match=r"rule 2 .* matches nothing") as caught:
        resolve(policy, layered())
    assert said in str(caught.value) and "mine" in str(caught.value)


matches = st.builds(
    Match,
    scope=st.none() | st.sampled_from(["net/*", "*/dense", "net/layer_1"]),
    primitive=st.none() | st.sampled_from(["tanh", "dot*", "elementwise"]),
    layers=st.none() | st.sampled_from(["0", "0-1", "2"]),
    every=st.none() | st.integers(1, 3),
)
decisions = st.sampled_from([Save(), Recompute(), Offload()])


@given(st.lists(st.builds(Rule, match=matches, decision=decisions), max_size=5), st.sampled_from(["save", "recompute"]))
def test_laws_of_precedence(rules, default):
    policy = Policy(rules=tuple(rules), default=default)
    try:
        resolved = resolve(policy, layered())
    except PolicyError:
        return
    for each in resolved:
        matching = [i for i, rule in enumerate(rules) if rule.match.holds(each.forward_value)]
        assert matching == ([each.rule, *each.others] if each.rule is not None else [])
    # What stands behind a rule for everything never decides.
    catch_all = Policy(rules=(*rules, Rule(decision=Save()), Rule(decision=Recompute())), default=default)
    assert all(each.rule != len(rules) + 1 for each in resolve(catch_all, layered()))
