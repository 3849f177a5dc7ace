"""Megatron's flags, read as a policy."""

import json

import pytest

from jaxckpt import PolicyError, read_policy
from jaxckpt.ir import Offload, Partition
from jaxckpt.policy import Match, Policy, Regions
from jaxckpt.policy.readers import policy_from_megatron
from tests.policy.readers.transformer import decided, recomputed_layers, saved_layers

FULL = "--recompute-granularity full --recompute-method"


def test_no_flags_keep_everything():
    assert policy_from_megatron([]).policy == Policy(name="megatron", default="save")
    assert policy_from_megatron("--bf16 --num-layers 12 --use-flash-attn").policy.rules == ()


def test_full_uniform_keeps_the_input_of_each_segment():
    policy = policy_from_megatron(f"{FULL} uniform --recompute-num-layers 2 --num-layers 4").policy
    assert saved_layers(policy) == [1] and recomputed_layers(policy) == [0, 1, 2, 3]


def test_full_uniform_by_one_needs_no_number_of_layers():
    reading = policy_from_megatron(f"{FULL} uniform --recompute-num-layers 1", layer_scope="*/block_*")
    assert reading.policy.regions == Regions(scope="*/block_*", segment=1) and not reading.not_carried
    assert recomputed_layers(reading.policy) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("flags", "layers"),
    [
        ("--recompute-num-layers 2", [0, 1]),
        ("--recompute-num-layers 1 --num-layers 4 --pipeline-model-parallel-size 2", [0, 2]),
        ("--recompute-num-layers 2 --num-layers 4 --pipeline-model-parallel-size 2", [0, 1, 2, 3]),
    ],
)
def test_full_block_recomputes_the_first_layers_of_each_stage(flags, layers):
    assert recomputed_layers(policy_from_megatron(f"{FULL} block {flags}").policy) == layers


def test_selective_recomputes_the_core_attention_alone():
    for flags in ("--recompute-activations", "--recompute-granularity selective", "--recompute-modules core_attn"):
        flags = flags if "modules" not in flags else f"--recompute-granularity selective {flags}"
        reading = policy_from_megatron(flags)
        found = decided(reading.policy)
        again = {place for place, word in found.items() if word == "recompute" and place.startswith("block_0/")}
        assert again == {"block_0/attn:dot_general", "block_0/attn:exp"}
        assert "fused" in reading.not_carried[0]


def test_selective_modules_are_scopes():
    reading = policy_from_megatron(
        ["--recompute-granularity=selective", "--recompute-modules", "mlp", "layernorm"],
        scopes={"layernorm": "*/norm"},
    )
    found = decided(reading.policy)
    assert found["block_0/mlp:mul"] == found["block_0/norm:rsqrt"] == "recompute"
    assert found["block_0/attn:exp"] == "save" and not reading.not_carried


def test_a_module_without_a_known_scope_is_noted():
    flags = "--recompute-granularity selective --recompute-modules mlp mhc"
    assert "scopes={'mhc'" in policy_from_megatron(flags).not_carried[0]
    assert not policy_from_megatron(flags, scopes={"mhc": "*/mhc"}).not_carried


def test_saved_activations_are_distributed_over_the_model_axis():
    flags = f"{FULL} uniform --recompute-num-layers 1 --distribute-saved-activations --tensor-model-parallel-size 8"
    reading = policy_from_megatron(flags, model_axis="tp", dim=2)
    assert reading.policy.rules[0].decision == Partition(axis="tp", dim=2)
    assert "flattened" in reading.not_carried[0]


def test_offloading_of_the_first_layers():
    reading = policy_from_megatron("--cpu-offloading --cpu-offloading-num-layers 2 --num-layers 4")
    found = decided(reading.policy)
    assert found["block_1/mlp:mul"] == "offload" and found["block_2/mlp:mul"] == "save"


def test_fine_grained_offloading_moves_what_modules_read():
    flags = "--fine-grained-activation-offloading --offload-modules core_attn --min-offloaded-tensor-size 1000"
    reading = policy_from_megatron(flags, prefetch=2)
    (rule,) = reading.policy.rules
    assert rule.decision == Offload(prefetch=2) and rule.match.min_bytes == 2000
    assert decided(reading.policy)["block_0/norm:rsqrt"] == "offload"
    assert len(reading.not_carried) == 2


def test_names_and_values_say_the_same_as_a_command_line():
    flags = {"recompute_granularity": "full", "recompute-method": "block", "--recompute-num-layers": 2}
    assert read_policy(flags, "megatron") == policy_from_megatron(f"{FULL} block --recompute-num-layers=2")
    assert policy_from_megatron({"recompute_activations": False}).policy.rules == ()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--recompute-granularty full", "closest is --recompute-granularity"),
        ("--recompute-granularity half", "should be one of full, selective"),
        ("--recompute-granularity full", "needs --recompute-method"),
        (f"{FULL} uniform", "needs --recompute-num-layers"),
        (f"{FULL} block --recompute-num-layers 2 --pipeline-model-parallel-size 2", "--num-layers is needed"),
        (f"{FULL} block --recompute-num-layers 5 --num-layers 4", "more than the 4 layers"),
        (f"{FULL} block --recompute-num-layers 1 --num-layers 4 --pipeline-model-parallel-size 3", "does not divide"),
        ("--recompute-granularity selective --recompute-method block", "is for --recompute-granularity full"),
        ("--recompute-activations --recompute-num-layers 1", "is for --recompute-granularity full"),
        (f"{FULL} block --recompute-num-layers 1 --recompute-modules mlp", "is for --recompute-granularity selective"),
        ("--recompute-granularity selective --recompute-modules core_atn", "closest is 'core_attn'"),
        ("--distribute-saved-activations", "full alone"),
        (f"{FULL} uniform --recompute-num-layers 1 --distribute-saved-activations --sequence-parallel", "must be off"),
        ("--checkpoint-activations", "no longer valid"),
        ("--cpu-offloading", "needs --cpu-offloading-num-layers"),
        ("--cpu-offloading --cpu-offloading-num-layers 4 --num-layers 4", "must be below"),
        ("--cpu-offloading --cpu-offloading-num-layers 1 --recompute-activations", "does not work with recomputation"),
        ("--offload-modules core_attn", "which is off"),
        ("--fine-grained-activation-offloading", "needs --offload-modules"),
        ("--recompute-num-layers", "takes one value, and got 0"),
        ("--recompute-num-layers two", "should be a whole number"),
        ("'", "no command line"),
    ],
)
def test_what_megatron_refuses_or_would_ignore_is_an_error(flags, said):
    with pytest.raises(PolicyError) as caught:
        policy_from_megatron(flags)
    assert said in str(caught.value)


def test_what_is_no_matter_of_residuals_is_said():
    reading = policy_from_megatron("--optimizer-cpu-offload --cpu-offloading-weights --activation-offload-fraction 0.5")
    assert len(reading.not_carried) == 3


def test_inputs_are_matched_by_their_boundary():
    flags = f"{FULL} block --recompute-num-layers 1 --distribute-saved-activations --tensor-model-parallel-size 2"
    policy = policy_from_megatron(flags).policy
    assert policy.rules[0].match == Match(boundary="input", dtype="*float*")


WHOLE = """
language_model:
  num_layers: 4
  recompute_granularity: full
  recompute_method: uniform
  recompute_num_layers: 2
  bf16: true
model_parallel:
  tensor_model_parallel_size: 2
train_iters: 10
"""


def test_a_whole_configuration_is_read_from_yaml_json_a_file_or_a_script(tmp_path):
    reading = policy_from_megatron(WHOLE)
    assert reading.policy.regions == Regions(scope="", segment=2)
    assert reading.ignored == ("bf16", "train_iters")
    table = {"num_layers": 4, "recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 2}
    assert policy_from_megatron(json.dumps({"model": table, "trainer": {"devices": 8}, "note": "x" * 5000})) == reading
    files = {
        "run.yaml": WHOLE,
        "args.txt": f"{FULL} uniform \\\n  --recompute-num-layers 2 \\\n  --num-layers 4 --bf16",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        assert policy_from_megatron(tmp_path / name) == policy_from_megatron(str(tmp_path / name)) == reading
    assert policy_from_megatron(tmp_path / "args.txt").ignored == ("bf16",)


def test_a_setting_in_two_tables_is_an_error():
    with pytest.raises(PolicyError, match="recompute_method occurs in two tables"):
        policy_from_megatron({"a": {"recompute_method": "block"}, "b": {"recompute_method": "uniform"}})


def test_an_unknown_flag_about_offloading_that_resembles_none_is_named():
    reading = policy_from_megatron("--rl-offload-kv-cache-during-training --bf16")
    assert reading.not_carried == ("--rl-offload-kv-cache-during-training is not known here.",)
    assert reading.ignored == ("bf16",)
