"""Policies as TOML: written, read back, refused with reasons."""

import pytest
from hypothesis import given, strategies as st

from jaxckpt import PolicyError
from jaxckpt.ir import Offload, Partition, Save
from jaxckpt.policy import Match, Policy, Regions
from tests.policy.strategies import policies, texts_like_policies

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


def test_regions_are_written_without_defaults():
    policy = Policy.from_toml('[regions]\nscope = "*/block_*"\nexclude = ["*norm*"]\nrecompute_random = false')
    assert policy.regions == Regions(scope="*/block_*", exclude=("*norm*",), recompute_random=False)
    assert policy.to_toml().splitlines()[-4:] == [
        "[regions]",
        'scope = "*/block_*"',
        'exclude = ["*norm*"]',
        "recompute_random = false",
    ]


def test_an_empty_table_of_regions_means_everything():
    assert Policy.from_toml("[regions]").regions == Regions()
    assert Policy.from_toml(Policy(regions=Regions()).to_toml()).regions == Regions()


def test_an_empty_file_is_the_policy_that_recomputes_everything():
    assert Policy.from_toml("") == Policy() and Policy().default == "recompute"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rule = ", "no TOML"),
        ("[[rule]]\ndecision = 'sav'", "one of save, recompute, offload, partition; the closest is 'save'"),
        ("[[rule]]\nname = 'x'", "decision is missing"),
        ("[[rule]]\ndecision = 'save'\nprimitve = 'dot'", "closest is 'primitive'"),
        ("[[rule]]\ndecision = 'save'\nspace = 'pinned_host'", "space is no key"),
        ("[[rule]]\ndecision = 'partition'\ndim = 'model'", "dim = 'model' should be a whole number"),
        ("[[rule]]\ndecision = 'offload'\nprefetch = 'soon'", "prefetch = 'soon' should be a whole number"),
        ("[[rule]]\ndecision = 'save'\nmin_bytes = '6 apples'", "no amount of memory"),
        ("[[rule]]\ndecision = 'save'\nlayers = 'first'", "no list of layers"),
        ("[[rule]]\ndecision = 'save'\nevery = true", "every = True should be a whole number"),
        ("default = 'keep'", "default = 'keep' should be one of save, recompute"),
        ("rule = 3", "rule = 3 should be a list of tables"),
        ("nmae = 'x'", "closest is 'name'"),
        ("name = 3", "name = 3 should be a text"),
        ("regions = 3", "regions = 3 should be a table"),
        ("[regions]\nscop = '*'", "closest is 'scope'"),
        ("[regions]\nexclude = 'norm'", "exclude = 'norm' should be a list of texts"),
        ("[regions]\nrecompute_random = 1", "recompute_random = 1 should be true or false"),
        ("[[rule]]\ndecision = 'save'\nmin_bytes = '1e999'", "is no amount of memory"),
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
    assert [problem.partition(":")[0] for problem in caught.value.problems[1:]] == ["rule 1", "rule 2"]


@given(policies)
def test_what_is_written_is_read_back_equal(policy):
    assert Policy.from_toml(policy.to_toml()) == policy
    assert hash(Policy.from_toml(policy.to_toml())) == hash(policy)


@given(texts_like_policies)
def test_any_text_is_a_policy_or_an_error_of_ours(text):
    try:
        policy = Policy.from_toml(text)
    except PolicyError as error:
        assert error.problems and all(error.problems)
    else:
        assert Policy.from_toml(policy.to_toml()) == policy


@given(policies, st.binary(max_size=40))
def test_a_broken_file_is_an_error_of_ours(policy, noise):
    text = (policy.to_toml().encode() + noise).decode(errors="replace")
    try:
        Policy.from_toml(text)
    except PolicyError as error:
        assert error.problems
