"""DeepSpeed's `activation_checkpointing`, read as a policy."""

import json

import pytest

from jaxckpt import PolicyError, read_policy
from jaxckpt.ir import Offload, Partition
from jaxckpt.policy import Match, Policy, Regions
from jaxckpt.policy.readers import policy_from_deepspeed
from tests.policy.readers.transformer import LAYERS, carried_out, saved_layers

FULL = """{
  "train_batch_size": 8,
  "zero_optimization": {"stage": 2, "contiguous_gradients": true},
  "activation_checkpointing": {
    "partition_activations": false,
    "cpu_checkpointing": false,
    "contiguous_memory_optimization": false,
    "number_checkpoints": null,
    "synchronize_checkpoint_boundary": false,
    "profile": false
  },
  "fp16": {"enabled": true}
}"""


def block(**keys):
    return {"activation_checkpointing": keys}


def test_the_defaults_save_inputs_of_layers_alone():
    reading = policy_from_deepspeed(FULL)
    assert reading == policy_from_deepspeed(None) == policy_from_deepspeed({}) == policy_from_deepspeed(block())
    assert reading.not_carried == () and reading.policy.rules == ()
    assert reading.policy.regions == Regions(scope="", segment=1)
    found = carried_out(reading.policy)
    saved = {place for place, word in found.items() if word == "save"}
    assert saved == {"embed:gather", *(f"block_{layer}/mlp/wo:dot_general" for layer in range(LAYERS - 1))}


def test_keys_of_no_concern_are_named():
    assert policy_from_deepspeed(FULL).ignored == ("train_batch_size", "zero_optimization", "fp16")
    assert "Of no concern to checkpointing: train_batch_size, zero_optimization, fp16" in str(
        policy_from_deepspeed(json.dumps(json.loads(FULL)))
    )
    many = {**{f"key_{number}": number for number in range(20)}, "activation_checkpointing": {}}
    assert "key_11 and 8 more" in str(policy_from_deepspeed(many))
    assert policy_from_deepspeed(block()).ignored == ()


def test_a_reading_says_what_a_layer_is_where_no_scope_is_given():
    assert "differs from others in a number alone" in policy_from_deepspeed(None).understood[0]
    assert policy_from_deepspeed(None, scope="*/block_*").understood == ()


def test_configuration_block_file_and_mapping_are_equal(tmp_path):
    path = tmp_path / "ds_config.json"
    path.write_text(FULL.replace('"cpu_checkpointing": false', '"cpu_checkpointing": true'))
    whole = json.loads(path.read_text())
    expected = policy_from_deepspeed(block(cpu_checkpointing=True))
    for config in (path, str(path), path.read_text(), whole, whole["activation_checkpointing"]):
        assert read_policy(config, "deepspeed") == expected


def test_cpu_checkpointing_offloads_floating_point_inputs():
    reading = policy_from_deepspeed(block(cpu_checkpointing=True), prefetch=2)
    (moved,) = reading.policy.rules
    assert moved.match == Match(boundary="input", dtype="*float*") and moved.decision == Offload(prefetch=2)
    assert any("keep_last_count" in said for said in reading.not_carried)
    found = carried_out(reading.policy)
    assert [place for place, word in found.items() if word == "offload"] == [
        "embed:gather",
        *(f"block_{layer}/mlp/wo:dot_general" for layer in range(LAYERS - 1)),
    ]


def test_partition_activations_cuts_over_the_model_axis():
    reading = policy_from_deepspeed(block(partition_activations=True), model_axis="tp", dim=2)
    assert reading.policy.rules[0].decision == Partition(axis="tp", dim=2)
    assert any("flattened" in said for said in reading.not_carried)
    assert any("is refused" in said for said in reading.not_carried)
    chosen = policy_from_deepspeed(block(partition_activations=True), model_axis="tp")
    assert chosen.policy.rules[0].decision == Partition(axis="tp")
    assert any("stays whole" in said for said in chosen.not_carried)


def test_partition_and_cpu_together_send_shards():
    reading = policy_from_deepspeed(block(partition_activations=True, cpu_checkpointing=True))
    assert reading.policy.rules[0].decision == Offload(shard=True, axis="model")
    assert "stays whole" in reading.not_carried[1]


def test_arguments_beat_the_json_and_none_says_nothing():
    config = block(cpu_checkpointing=True, partition_activations=True)
    reading = policy_from_deepspeed(config, checkpoint_in_cpu=False, partition_activations=None)
    assert reading.policy.rules[0].decision == Partition(axis="model")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"partitioned_activations": True}, "closest is 'partition_activations'"),
        ({"cpu_checkpoint": True}, "closest is 'cpu_checkpointing'"),
        ({"profile": "yes"}, "should be true or false"),
        ({"number_checkpoints": -1}, "should be a whole number"),
        (
            {"contiguous_memory_optimization": True, "number_checkpoints": 4},
            "only available with partition_activations",
        ),
        ({"contiguous_memory_optimization": True, "partition_activations": True}, "needs number_checkpoints"),
    ],
)
def test_what_is_wrong_is_an_error(keys, said):
    with pytest.raises(PolicyError) as caught:
        policy_from_deepspeed(block(**keys))
    assert said in str(caught.value) and len(str(caught.value).splitlines()) == 4


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(PolicyError) as caught:
        policy_from_deepspeed(block(profil=True, cpu_checkpointing=3), partition_activation=True)
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"activation_checkpointing": {', "no JSON"),
        ("ds_config.jsn", "neither a file"),
        ("[1]", "no table"),
        ('{"activation_checkpointing": 3}', "should be a table"),
        ('{"activation_checkpoint": {}}', "closest"),
        ('{"activation_checkpointing": {"profile": true, "profile": false}}', "'profile' occurs twice"),
    ],
)
def test_what_is_no_configuration_is_an_error(text, said):
    with pytest.raises(PolicyError) as caught:
        policy_from_deepspeed(text)
    assert said in str(caught.value)


def test_what_means_nothing_for_a_compiled_step_is_said():
    keys = {"contiguous_memory_optimization": True, "partition_activations": True, "number_checkpoints": 4}
    reading = policy_from_deepspeed(block(**keys))
    assert "one stacked buffer" in reading.not_carried[1]
    assert "number_checkpoints" in policy_from_deepspeed(block(number_checkpoints=4)).not_carried[0]


@pytest.mark.parametrize(
    ("key", "call"),
    [("synchronize_checkpoint_boundary", "jax.block_until_ready"), ("profile", "jaxckpt.timed_scopes")],
)
def test_a_setting_that_is_a_call_here_warns_with_the_call(key, call):
    with pytest.warns(UserWarning, match=f"deepspeed: {key} .*Call {call}"):
        reading = read_policy(block(**{key: True}), "deepspeed")
    assert call in reading.not_carried[0]
    assert not policy_from_deepspeed(block(**{key: False})).not_carried


def test_listed_layers_alone_are_checkpointed():
    reading = policy_from_deepspeed(block(cpu_checkpointing=True), scope="*/attn")
    assert reading.policy.regions == Regions(scope="*/attn", segment=1) and reading.policy.default == "save"
    found = carried_out(reading.policy)
    assert found["embed:gather"] == "offload"  # what the attention reads is a norm of it, fused into its products
    assert found["block_0/attn:exp"] == "recompute" and "block_0/mlp:mul" not in found


def test_an_interval_makes_segments_of_several_layers():
    reading = policy_from_deepspeed(None, activation_checkpoint_interval=2, num_layers=LAYERS)
    assert "2 segments in 4 layers" in reading.understood[0]
    assert saved_layers(reading.policy) == [1]  # what the last segment hands on, no later layer reads
    assert saved_layers(policy_from_deepspeed(None, activation_checkpoint_interval=3).policy) == [2]
    assert policy_from_deepspeed(None, activation_checkpoint_interval=0).policy == Policy(
        name="deepspeed", default="save", about="activation_checkpoint_interval = 0: all is kept."
    )
    with pytest.raises(PolicyError, match="no whole number of at least 0"):
        policy_from_deepspeed(None, activation_checkpoint_interval=-1)


def test_the_interval_of_a_pipeline_is_read_and_the_argument_overrides_it():
    config = {"pipeline": {"stages": "auto", "activation_checkpoint_interval": 2}, **block()}
    assert policy_from_deepspeed(config).policy.regions.segment == 2
    assert policy_from_deepspeed(config).ignored == ()
    assert policy_from_deepspeed(config, activation_checkpoint_interval=3).policy.regions.segment == 3
    config["pipeline"]["activation_checkpoint_interval"] = 0  # DeepSpeed's default: the module's own interval
    assert policy_from_deepspeed(config).policy.regions.segment == 1
    config["pipeline"]["activation_checkpoint_interval"] = "two"
    with pytest.raises(PolicyError, match="'two' is no whole number"):
        policy_from_deepspeed(config)


def test_a_reading_prints_what_was_and_was_not_carried_over():
    text = str(policy_from_deepspeed(block(number_checkpoints=4)))
    assert text.startswith('Read from deepspeed: policy "deepspeed"') and "Not carried over: number_checkp" in text
    assert "Carried over in full." in str(policy_from_deepspeed(None))


def test_rules_say_why():
    (rule,) = policy_from_deepspeed(block(cpu_checkpointing=True)).policy.rules
    assert rule.note == "what a checkpointed function reads"
