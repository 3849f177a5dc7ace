"""Whatever a configuration holds, a reader returns a policy or raises an error of ours."""

import json

import pytest
from hypothesis import given, settings, strategies as st

from jaxckpt import PolicyError, read_policy
from jaxckpt.ir import Save
from jaxckpt.policy import Policy
from jaxckpt.policy.readers.cells import rules_of_patterns
from jaxckpt.policy.readers.deepspeed import _KEY_OF_ARGUMENT
from jaxckpt.policy.readers.maxtext import POLICIES, TENSORS
from jaxckpt.policy.readers.megatron import _KEYS, MODULES, OFFLOADED
from jaxckpt.policy.readers.mindformers import GRAPH_KEYS
from jaxckpt.policy.readers.mindspore import CELL_KEYS
from jaxckpt.policy.readers.pynative import PYNATIVE_KEYS
from jaxckpt.policy.readers.read import READERS
from jaxckpt.policy.readers.reading import ConfigReader

PATTERNS = (r"feed_forward\.mul", ".*", "(a|b)c", "(", r"\d+", "a{2}", "x\\", "[z-a]", "attn")
words = st.sampled_from(
    [
        *POLICIES,
        *MODULES,
        *OFFLOADED,
        *PATTERNS,
        "full",
        "select",
        "uniform",
        "block",
        "device",
        "offload",
        "0-3",
        "5-2",
    ]
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 9),
    st.sampled_from([10**9, 10**30, 1.5, float("nan")]),
    words,
    st.text(max_size=8),
)
keys = st.sampled_from(
    [
        *(
            "activation_checkpointing",
            "recompute_config",
            "swap_config",
            "swap",
            "recompute_comm",
            "parallelism",
            "model",
        ),
        *("enable", "layer_swap", "op_swap", "layers", "op_name", "backward_prefetch", "default_prefetch"),
        *("pipeline_parallel", "parallel_config", "pipeline_stage", "model_config", "num_layers", "offset"),
        *(
            *_KEY_OF_ARGUMENT.values(),
            *TENSORS,
            "remat_policy",
            *_KEYS,
            *GRAPH_KEYS,
            *CELL_KEYS,
            *PYNATIVE_KEYS,
            *PATTERNS,
        ),
    ]
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=8
)
documents = st.dictionaries(keys | st.text(max_size=8), values, max_size=6)


def survives(config, system, **options):
    try:
        reading = read_policy(config, system, **options)
    except PolicyError as error:
        assert error.problems and len(str(error).splitlines()) == 4
    else:
        assert str(reading) and all(reading.understood) and all(reading.not_carried)
        assert Policy.from_toml(reading.policy.to_toml()) == reading.policy


@pytest.mark.parametrize("system", READERS)
@given(documents, st.none() | st.integers(1, 12))
@settings(max_examples=150)
def test_any_table_is_read_or_refused(system, document, num_layers):
    options = {} if system == "maxtext" else {"num_layers": num_layers}
    survives(document, system, **options)


@pytest.mark.parametrize("system", READERS)
@given(
    st.text(max_size=60) | documents.map(json.dumps) | st.binary(max_size=30).map(lambda b: b.decode(errors="replace"))
)
def test_any_text_is_read_or_refused(system, text):
    survives(text, system)


@given(st.dictionaries(st.sampled_from(list(_KEY_OF_ARGUMENT)), scalars, max_size=4))
def test_any_arguments_are_read_or_refused(arguments):
    survives({}, "deepspeed", **arguments)


@given(st.lists(st.sampled_from([f"--{key.replace('_', '-')}" for key in _KEYS]) | words | st.integers(0, 5).map(str)))
def test_any_command_line_is_read_or_refused(flags):
    survives(flags, "megatron")
    survives(" ".join(flags), "megatron")


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "recompute": values,
            "select_recompute": st.booleans() | st.lists(st.sampled_from(PATTERNS)) | st.dictionaries(words, values),
            "select_recompute_exclude": st.lists(st.sampled_from(PATTERNS)),
            "mp_comm_recompute": st.booleans(),
        },
    ),
    st.integers(1, 12),
)
def test_any_recompute_config_is_read_or_refused(settings_, num_layers):
    survives({"recompute_config": settings_}, "mindspore", num_layers=num_layers)


@given(st.text(alphabet="ab.\\*+?|()[]{}^$,d2:=!-", max_size=12))
def test_any_pattern_becomes_a_rule_or_is_said(pattern):
    reader = ConfigReader("mindspore", needed="")
    rules = list(rules_of_patterns({pattern: None}, Save(), reader, key="select"))
    assert rules or reader.not_carried


@pytest.mark.parametrize(
    ("system", "config"),
    [
        ("deepspeed", {"activation_checkpointing": {"cpu_checkpointing": True}}),
        ("maxtext", {"remat_policy": "minimal"}),
        ("mindspore", {"recompute_config": {"recompute": True}}),
    ],
)
def test_a_text_on_one_line_is_read_however_long_it_is(system, config):
    """No path is as long as that, and the system says so with an error of its own (ENAMETOOLONG)."""
    text = json.dumps({"notes": "x" * 5000, **config})
    assert "\n" not in text
    assert read_policy(text, system) == read_policy(config, system)


def test_a_command_line_is_read_however_long_it_is():
    flags = "--recompute-activations"
    assert read_policy(f"{flags} --name {'x' * 5000}", "megatron") == read_policy(flags, "megatron")


@pytest.mark.parametrize("system", ["deepspeeed", "mega", ""])
def test_an_unknown_system_is_an_error_that_names_the_others(system):
    with pytest.raises(PolicyError, match="one of deepspeed, maxtext, megatron, mindspore"):
        read_policy({}, system)
