"""The schema of policy files says what the reader says, and is the one in the folder of policies."""

import tomllib

import jsonschema
import pytest
from hypothesis import given

from benchmarks.policy_schema import FILE, policy_schema, schema_text
from jaxckpt import PolicyError
from jaxckpt.policy import Policy, load_policy
from tests.policy.strategies import policies, texts_like_policies

VALID = jsonschema.Draft7Validator(policy_schema()).is_valid
FILES = sorted(FILE.parent.glob("*.toml"))


def test_the_file_is_current():
    assert FILE.read_text() == schema_text(), "python -m benchmarks.policy_schema"


def test_the_schema_is_one():
    jsonschema.Draft7Validator.check_schema(policy_schema())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_ready_policies_name_the_schema_and_follow_it(path):
    text = path.read_text()
    assert text.startswith("#:schema ./policy.schema.json\n") and VALID(tomllib.loads(text))
    assert load_policy(path.stem).name == path.stem


@given(policies)
def test_what_is_written_follows_the_schema(policy):
    assert VALID(tomllib.loads(policy.to_toml()))


@given(texts_like_policies)
def test_what_the_reader_reads_follows_the_schema(text):
    try:
        Policy.from_toml(text)
    except PolicyError:
        return
    assert VALID(tomllib.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        "nmae = 'x'",
        "default = 'keep'",
        "[regions]\nscop = '*'",
        "[regions]\nrecompute_random = 1",
        "[[rule]]\nname = 'x'",
        "[[rule]]\ndecision = 'save'\nspace = 'pinned_host'",
        "[[rule]]\ndecision = 'partition'\ndim = 'model'",
        "[[rule]]\ndecision = 'save'\nevery = 0",
        "[[rule]]\ndecision = 'save'\nboundary = 'both'",
    ],
)
def test_the_schema_refuses_keys_that_the_reader_refuses(text):
    with pytest.raises(PolicyError):
        Policy.from_toml(text)
    assert not VALID(tomllib.loads(text))


def test_every_key_says_what_it_means():
    def keys(node):
        if isinstance(node, dict):
            yield from node.get("properties", {}).items()
            for child in node.values():
                yield from keys(child)
        elif isinstance(node, list):
            for child in node:
                yield from keys(child)

    assert not [name for name, key in keys(policy_schema()) if not key.get("description")]


def test_the_text_of_a_policy_is_no_path():
    text = 'default = "recompute"\n' + '[[rule]]\nprimitive = "dot_general"\ndecision = "save"\n' * 6
    with pytest.raises(PolicyError, match=r"Policy\.from_toml\(text\)"):
        load_policy(text)
