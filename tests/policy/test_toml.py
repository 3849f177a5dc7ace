"""Policies as TOML: written, read back, refused with reasons."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxckpt import PolicyError
from jaxckpt.ir import Offload, Partition, Recompute, Save
from jaxckpt.policy import Match, Policy, Rule

EXAMPLE = """
name = "transformer-offload"
for = "decoder-only transformers"
default = "recompute"

[[rule]]                       # first match decides
scope = "*/block_*/attn"
name = "qkv"
decision = "save"

[[rule]]
scope = "*/block_*"
primitive = "dot_general"
layers = "0-11"
min_bytes = "8MiB"
decision = "offload"
prefetch = 2

[[rule]]
name = "block_input"
decision = "partition"
axis = "model"
dim = 1
strength = "prefer"
"""


def test_the_words_that_people_write_are_read():
    policy = Policy.from_toml(EXAMPLE)
    assert policy.name == "transformer-offload" and policy.models == "decoder-only transformers"
    assert [rule.decision for rule in policy.rules] == [
        Save(),
        Offload(space="pinned_host", prefetch=2),
        Partition(axis="model", dim=1),
    ]
    assert policy.rules[1].match == Match(
        scope="*/block_*", primitive="dot_general", layers="0-11", min_bytes=8 * 2**20
    )
    assert [rule.strength for rule in policy.rules] == ["must", "must", "prefer"]


def test_an_empty_file_is_the_policy_that_recomputes_everything():
    assert Policy.from_toml("") == Policy() and Policy().default == "recompute"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rule = ", "no TOML"),
        ("[[rule]]\ndecision = 'sav'", "one of save, recompute, offload, partition"),
        ("[[rule]]\nname = 'x'", "decision is missing"),
        ("[[rule]]\ndecision = 'save'\nprimitve = 'dot'", "closest is 'primitive'"),
        ("[[rule]]\ndecision = 'save'\nspace = 'pinned_host'", "'space' is no key"),
        ("[[rule]]\ndecision = 'partition'\naxis = 'model'", "needs dim"),
        ("[[rule]]\ndecision = 'offload'\nprefetch = 'soon'", "prefetch = 'soon' is no int"),
        ("[[rule]]\ndecision = 'save'\nmin_bytes = '6 apples'", "no amount of memory"),
        ("[[rule]]\ndecision = 'save'\nlayers = 'first'", "no list of layers"),
        ("[[rule]]\ndecision = 'save'\nevery = true", "every = True is no number"),
        ("default = 'keep'", "default = 'keep'; it is one of save, recompute"),
        ("rule = 3", "write [[rule]]"),
        ("nmae = 'x'", "closest is 'name'"),
        ("name = 3", "name = 3 is no text"),
    ],
)
def test_what_is_wrong_is_said_with_what_would_be_right(text, said):
    with pytest.raises(PolicyError) as caught:
        Policy.from_toml(text)
    assert said in str(caught.value)


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(PolicyError) as caught:
        Policy.from_toml("default = 'x'\n[[rule]]\ndecision = 'y'\n[[rule]]\nname = 3\ndecision = 'save'")
    assert len(caught.value.problems) == 3
    assert [problem.partition(":")[0] for problem in caught.value.problems[:2]] == ["rule 1", "rule 2"]


texts = st.text(max_size=20)
matches = st.builds(
    Match,
    scope=st.none() | texts,
    name=st.none() | texts,
    primitive=st.none() | texts,
    dtype=st.none() | texts,
    layers=st.none() | st.sampled_from(["0", "0-3,7", "5,2"]),
    every=st.none() | st.integers(1, 9),
    min_bytes=st.none() | st.integers(0, 2**50),
    max_bytes=st.none() | st.integers(0, 2**50),
    min_flops=st.none() | st.integers(0, 2**60),
)
decisions = st.one_of(
    st.just(Save()),
    st.just(Recompute()),
    st.builds(Offload, space=texts, prefetch=st.integers(0, 9)),
    st.builds(Partition, axis=texts, dim=st.integers(0, 5)),
)
policies = st.builds(
    Policy,
    name=texts.filter(bool),
    models=texts,
    about=st.text(max_size=60),
    default=st.sampled_from(["save", "recompute"]),
    rules=st.lists(
        st.builds(Rule, match=matches, decision=decisions, strength=st.sampled_from(["must", "prefer"]), note=texts),
        max_size=4,
    ).map(tuple),
)


@given(policies)
def test_what_is_written_is_read_back_equal(policy):
    assert Policy.from_toml(policy.to_toml()) == policy
    assert hash(Policy.from_toml(policy.to_toml())) == hash(policy)


@given(st.text(max_size=80) | st.lists(st.sampled_from(EXAMPLE.splitlines()), max_size=20).map("\n".join))
def test_any_text_is_a_policy_or_an_error_of_ours(text):
    try:
        policy = Policy.from_toml(text)
    except PolicyError as error:
        assert error.problems
    else:
        assert Policy.from_toml(policy.to_toml()) == policy
