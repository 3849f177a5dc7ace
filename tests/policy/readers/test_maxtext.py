"""MaxText's `remat_policy`, read as a policy."""

import pytest

from jaxckpt import PolicyError, read_policy
from jaxckpt.ir import Offload, Save
from jaxckpt.policy import Policy, Regions
from jaxckpt.policy.readers import policy_from_maxtext
from jaxckpt.policy.readers.maxtext import OFFLOADED_TENSORS, POLICIES, SAVED_TENSORS, TENSORS
from tests.policy.readers.transformer import decided, saved_layers

MINIMAL = {
    "block_0/attn/query:dot_general",
    "block_0/attn/key:dot_general",
    "block_0/attn/out:dot_general",
    "block_0/mlp/wi:dot_general",
    "block_0/mlp/wo:dot_general",
}


def of_first_layer(policy: Policy, word: str) -> set[str]:
    return {place for place, decision in decided(policy).items() if place.startswith("block_0/") and decision == word}


def test_full_keeps_the_inputs_of_layers_alone():
    assert saved_layers(policy_from_maxtext("full").policy) == [0, 1, 2]
    assert of_first_layer(policy_from_maxtext("full").policy, "save") == set()
    assert policy_from_maxtext() == policy_from_maxtext("full")


def test_none_keeps_everything():
    assert policy_from_maxtext("none").policy == Policy(
        name="maxtext-none", default="save", about="No remat: all is kept."
    )


def test_minimal_saves_its_names_and_ignores_missing_ones():
    assert of_first_layer(policy_from_maxtext("minimal").policy, "save") == MINIMAL


def test_minimal_offloaded_moves_them():
    assert of_first_layer(policy_from_maxtext("minimal_offloaded").policy, "offload") == MINIMAL


@pytest.mark.parametrize("word", POLICIES)
def test_every_value_of_remat_policy_is_read_and_written(word):
    reading = policy_from_maxtext(word)
    assert Policy.from_toml(reading.policy.to_toml()) == reading.policy and reading.not_carried == ()


@pytest.mark.parametrize("word", [*SAVED_TENSORS, *OFFLOADED_TENSORS])
def test_a_ready_policy_means_its_names_and_no_others(word):
    names = {*TENSORS, "quantization", "moe_mlpwi"}
    for decision, listed in ((Save(), SAVED_TENSORS), (Offload(), OFFLOADED_TENSORS)):
        globs = [rule.match for rule in policy_from_maxtext(word).policy.rules if rule.decision == decision]
        listing = [match.name for match in globs if match.name]
        found = {name for name in names if any(_matches(glob, name) for glob in listing)}
        assert found == set(listed.get(word, ()))


def _matches(glob, name):
    from jaxckpt.policy.rule import globs

    return globs(glob, name)


def test_custom_places_each_tensor():
    reading = policy_from_maxtext(
        remat_policy="custom", query_proj="device", mlpwi="offload", mlpwo="remat", decoder_layer_input="offload"
    )
    found = decided(reading.policy)
    assert found["block_0/attn/query:dot_general"] == "save" and found["block_0/mlp/wi:dot_general"] == "offload"
    assert found["embed:gather"] == "offload" and found["block_0/attn/key:dot_general"] == "recompute"


def test_a_tensor_missing_in_the_model_is_an_error_on_resolution():
    with pytest.raises(PolicyError, match="name = 'engram'"):
        decided(policy_from_maxtext(remat_policy="custom", engram="offload").policy)


@pytest.mark.parametrize(
    "config",
    [
        {"remat_policy": "custom", "context": "device", "learning_rate": 3e-5, "decoder_block": "llama2"},
        "run_name=x remat_policy=custom context='device' per_device_batch_size=4",
        "run_name: x\nremat_policy: 'custom'\ncontext: 'device' # kept\nlr: 3.e-5\n",
    ],
)
def test_a_configuration_may_hold_other_keys(config):
    reading = read_policy(config, "maxtext")
    assert reading == policy_from_maxtext(remat_policy="custom", context="device")
    assert len(reading.ignored) == 2 and reading.ignored[0] in str(reading)


def test_layers_may_be_named():
    assert policy_from_maxtext("full", scope="*/layers_*").policy.regions == Regions(scope="*/layers_*", segment=1)


def test_a_file_is_read(tmp_path):
    path = tmp_path / "base.yml"
    path.write_text("remat_policy: minimal\nsteps: 10\n")
    assert policy_from_maxtext(path) == policy_from_maxtext("minimal")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"remat_policy": "minimall"}, "closest is 'minimal'"),
        ({"remat_policy": "custom", "contxt": "offload"}, "closest is 'context'"),
        ({"remat_policy": "custom", "context": "host"}, "should be one of device, remat, offload"),
        ({"remat_policy": "custom", "decoder_layer_input": "remat"}, "cannot be recomputed"),
        ({"optimizer_memory_host_offload": "yes"}, "should be true or false"),
    ],
)
def test_what_is_wrong_is_an_error(settings, said):
    with pytest.raises(PolicyError) as caught:
        policy_from_maxtext(settings)
    assert said in str(caught.value)
    with pytest.raises(PolicyError):
        policy_from_maxtext(**settings)


def test_tensors_beside_another_policy_are_said_to_mean_nothing():
    assert "custom" in policy_from_maxtext("minimal", context="offload").not_carried[0]
    assert not policy_from_maxtext("minimal", context="remat", decoder_layer_input="device").not_carried


def test_what_is_no_matter_of_residuals_is_said():
    reading = policy_from_maxtext(
        remat_policy="full",
        optimizer_memory_host_offload=True,
        set_remat_policy_on_layers_per_stage=True,
        remat_policy_for_vit="minimal",
    )
    assert len(reading.not_carried) == 3 and any("jaxckpt.scope" in said for said in reading.not_carried)


@pytest.mark.parametrize("line", ["# override on the command line: steps=10", "dataset_path: gs://bucket/date=2024/x"])
def test_a_yaml_text_with_an_equals_sign_is_yaml(line):
    assert read_policy(f"{line}\nremat_policy: minimal\n", "maxtext").policy == policy_from_maxtext("minimal").policy
