"""A policy file that is saved again keeps the comments of what did not change."""

import dataclasses

import pytest
from hypothesis import given

from jaxckpt._errors import PolicyError
from jaxckpt.ir import Offload, Recompute, Save
from jaxckpt.policy import Match, Policy, Regions, Rule
from jaxckpt.policy.edit import edited
from tests.policy.strategies import policies, texts_like_policies

FILE = """\
#:schema ./policy.schema.json
# Reviewed by the memory group.

name = "ours"            # as in the plan
default = "recompute"    # the cluster is small

# Blocks are regions.
[regions]
scope = "*/block_*"      # not the head
exclude = ["*norm*"]

# Wide, and cheap to keep.
[[rule]]
name = "qkv"             # all three
decision = "save"

# Goes to the host.
[[rule]]
scope = "*/mlp"
min_bytes = "8MiB"       # smaller ones are not worth a copy
decision = "offload"
space = "pinned_host"
prefetch = 1

# Everything else of the attention.
[[rule]]
scope = "*/attn"
decision = "recompute"
"""
POLICY = Policy.from_toml(FILE)


def changed(**keys):
    return edited(FILE, dataclasses.replace(POLICY, **keys))


def comments(text):
    return {line.partition("#")[2].strip() for line in text.splitlines() if "#" in line}


def test_nothing_changed_is_the_same_text():
    assert edited(FILE, POLICY) == FILE


def test_a_rule_changed_keeps_every_comment():
    first, second, third = POLICY.rules
    second = dataclasses.replace(second, decision=Offload(prefetch=2))
    text = changed(rules=(first, second, third))
    assert text == FILE.replace("prefetch = 1", "prefetch = 2")


def test_a_decision_changed_takes_its_own_keys_along():
    first, second, third = POLICY.rules
    text = changed(rules=(first, dataclasses.replace(second, decision=Save()), third))
    assert text == FILE.replace('decision = "offload"\nspace = "pinned_host"\nprefetch = 1\n', 'decision = "save"\n')


def test_a_rule_taken_out_takes_its_comments_along():
    first, _, third = POLICY.rules
    text = changed(rules=(first, third))
    assert comments(FILE) - comments(text) == {"Goes to the host.", "smaller ones are not worth a copy"}


def test_a_rule_put_in_leaves_the_others_alone():
    new = Rule(match=Match(name="out"), decision=Recompute(), note="new")
    for place in range(4):
        text = changed(rules=(*POLICY.rules[:place], new, *POLICY.rules[place:]))
        assert comments(text) == comments(FILE) and 'note = "new"' in text


def test_texts_and_regions_change_in_place():
    text = changed(name="theirs", regions=Regions(scope="*/layer_*", exclude=("*norm*",)))
    assert text == FILE.replace('"ours"', '"theirs"').replace('"*/block_*" ', '"*/layer_*" ')


def test_regions_come_and_go():
    assert Policy.from_toml(changed(regions=None)).regions is None
    assert "not the head" not in changed(regions=None)
    bare = edited('# top\ndefault = "save"  # kept\n', Policy(default="save", regions=Regions(scope="x")))
    assert comments(bare) == {"top", "kept"}


@pytest.mark.parametrize(
    "text",
    [
        "this is no TOML",
        'rule = [{name = "qkv", decision = "save"}]  # inline',
        "about = '''\n[[rule]]\n'''\n[[rule]]\ndecision = 'save'\n",
        "[[rule]]\n[[rule]]\n",
    ],
)
def test_what_is_not_understood_is_written_anew(text):
    assert Policy.from_toml(edited(text, POLICY)) == POLICY


def test_saving_onto_a_file_keeps_its_comments(tmp_path):
    path = tmp_path / "ours.toml"
    path.write_text(FILE)
    dataclasses.replace(POLICY, default="save").save(path)
    assert path.read_text() == FILE.replace('"recompute"    #', '"save"    #')
    POLICY.save(tmp_path / "new.toml")
    assert Policy.from_toml((tmp_path / "new.toml").read_text()) == POLICY


@given(policies, policies)
def test_any_policy_becomes_any_other(before, after):
    assert Policy.from_toml(edited(before.to_toml(), after)) == after


@given(texts_like_policies, policies)
def test_any_text_becomes_the_policy(text, policy):
    assert Policy.from_toml(edited(text, policy)) == policy


def test_a_file_that_is_no_text_is_not_changed(tmp_path):
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PolicyError, match="is no text"):
        POLICY.save(path)
    assert path.read_bytes() == b"\xff\xfe\x00"
