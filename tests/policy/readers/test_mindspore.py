"""MindSpore's and mindformers' recomputation, read as policies."""

import json

import jax
import jax.numpy as jnp
import pytest

import jaxckpt
from jaxckpt import PolicyError, read_policy
from jaxckpt.ir import Offload, Partition, Recompute, Save
from jaxckpt.policy import Match, Policy, Regions
from jaxckpt.policy.readers import policy_from_mindspore
from jaxckpt.policy.readers.patterns import PatternError, PatternTarget, target_of_pattern
from tests.policy.readers.transformer import decided, recomputed_layers


def read(config, **settings):
    return policy_from_mindspore(config, **{"num_layers": 4, **settings})


### Cell.recompute


def test_a_cell_is_a_region_whose_switches_are_carried_over():
    assert read({}).policy.regions == Regions(scope="", segment=1) and read({}).policy.default == "save"
    keys = {"mp_comm_recompute": False, "parallel_optimizer_comm_recompute": True, "output_recompute": True}
    assert read(keys, scope="*/block_*").policy.regions == Regions(
        scope="*/block_*",
        segment=1,
        recompute_collectives=False,
        recompute_gathered_parameters=True,
        output_recompute=True,
    )


def test_a_cell_keeps_what_it_reads_and_recomputes_what_is_in_it():
    found = decided(read({}, scope="*/block_*").policy)
    assert found["block_0/mlp:mul"] == "recompute" and found["embed:gather"] == "save"


def test_sliced_activations_are_cut_in_the_first_dimension():
    reading = read({"recompute_slice_activation": True}, model_axis="tp")
    assert reading.policy.rules[0].decision == Partition(axis="tp", dim=0)
    assert "does not divide" in reading.not_carried[0] and "takes more memory" in reading.not_carried[0]


def test_an_unknown_keyword_is_an_error():
    with pytest.raises(PolicyError, match="closest is 'mp_comm_recompute'"):
        read({"mp_com_recompute": True})


### Graph mode


@pytest.mark.parametrize(
    ("recompute", "layers", "said"),
    [
        (True, [0, 1, 2, 3], ""),
        (False, [], ""),
        ([1, 2], [0, 2, 3], "recompute = [1, 2]: layers 0,2-3, of stages of [2, 2] layers."),
        ([0, 9], [2, 3], "layers 2-3"),
        ([True, False], [0, 1], "layers 0-1"),
        ([[1, 0], [0, 1]], [0, 3], "of stages of [[1, 1], [1, 1]] layers"),
        ([[True, False], False], [0], "layer 0"),
        ([0, 0], [], "no layers"),
    ],
)
def test_layers_by_stage_are_normalised_and_said(recompute, layers, said):
    reading = read({"recompute": recompute})
    assert recomputed_layers(reading.policy) == layers
    assert said in " ".join(reading.understood)


def test_the_stages_of_a_whole_configuration_count():
    document = {
        "model": {"model_config": {"num_layers": 9, "offset": [0, 1]}},
        "parallel_config": {"pipeline_stage": 2},
        "recompute_config": {"recompute": [1, 5]},
    }
    reading = policy_from_mindspore(document)
    assert "layers 0,4-8, of stages of [4, 5] layers" in reading.understood[0]
    assert policy_from_mindspore(json.dumps(document)) == reading


def test_yaml_is_read(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("recompute_config:\n  recompute: [1, 2]\n  mp_comm_recompute: True\n# end\n")
    assert read(path) == read({"recompute_config": {"recompute": [1, 2]}})


def test_a_selection_maps_operators_to_primitives():
    reading = read({"select_recompute": [r"mlp\.mul", r"attn\.(query|key)"]})
    assert [rule.match for rule in reading.policy.rules] == [
        Match(scope="*/mlp", primitive="mul", every=1),
        Match(scope="*/attn/{query,key}", every=1),
    ]
    assert "ends in an operator" in reading.understood[0]
    found = decided(reading.policy)
    assert found["block_0/mlp:mul"] == found["block_0/attn/key:dot_general"] == "recompute"
    assert found["block_0/attn:exp"] == "save"


def test_a_selection_without_patterns_means_those_of_mindformers():
    rules = read({"select_recompute": True, "select_comm_recompute": True}).policy.rules
    assert [(rule.match.scope, rule.match.primitive) for rule in rules[:2]] == [
        ("*/feed_forward", "mul"),
        ("*/feed_forward/w1/activation", "logistic"),
    ]
    assert rules[2].match == Match(scope="*/*/norm", collective=True, every=1)


def test_full_beats_select_and_exclusion_beats_both():
    config = {"recompute": [2, 0], "select_recompute": [r"attn\.key"], "select_recompute_exclude": [r"mlp\.mul"]}
    reading = read(config)
    found = decided(reading.policy)
    assert recomputed_layers(reading.policy) == [0, 1]
    assert found["block_0/mlp:mul"] == "save" and found["block_3/attn/key:dot_general"] == "recompute"
    assert "select_recompute gives way in layers 0-1, which are recomputed as a whole." in reading.understood


def test_recomputing_beats_swapping():
    swap = {"swap": True, "layer_swap": [{"backward_prefetch": 2, "layers": [1, 2]}]}
    reading = read({"recompute_config": {"recompute": [0, 1]}, "swap_config": swap})
    found = decided(reading.policy)
    assert recomputed_layers(reading.policy) == [0, 1] and found["block_2/mlp:mul"] == "offload"
    assert reading.policy.rules[-1].decision == Offload(prefetch=2)
    assert "swap gives way in layer 1, which is recomputed as a whole." in reading.understood
    assert any("by number because swap is on" in said for said in reading.understood)


def test_swapped_operators_stand_before_swapped_layers():
    swap = {"swap": True, "op_swap": [{"op_name": r"mlp\.mul", "layers": True}], "layer_swap": [{"layers": [0]}]}
    rules = read({"swap_config": swap, "recompute_config": {"recompute": False}}).policy.rules
    assert [rule.match for rule in rules] == [Match(scope="*/mlp", primitive="mul", every=1), Match(layers="0")]
    assert read({"swap_config": {"swap": True, "default_prefetch": 3}}).policy.rules[0].decision == Offload(prefetch=3)
    assert read({"swap_config": {"swap": False, "layer_swap": [{"layers": [0]}]}}).policy.rules == ()


@pytest.mark.parametrize(("recompute", "layers"), [(True, None), ([1, 2], "0,2-3")])
@pytest.mark.parametrize("scope", ["*", "*/block_*"])
def test_collectives_are_saved_in_regions(recompute, layers, scope):
    keys = {"recompute": recompute, "mp_comm_recompute": False, "parallel_optimizer_comm_recompute": True}
    reading = read(keys, scope=scope)
    assert reading.not_carried == () and reading.policy.regions == Regions(
        scope="" if scope == "*" else scope,
        segment=1,
        layers=layers,
        recompute_collectives=False,
        recompute_gathered_parameters=True,
    )


def test_layers_that_the_model_does_not_have_are_an_error():
    with pytest.raises(PolicyError, match=r"layers 4-5 of its regions are not there: 4 layers: scopes net/block_"):
        recomputed_layers(read({"recompute": [3, 3]}, num_layers=6).policy)


def test_a_selection_says_that_it_may_take_more():
    assert "which may be more than their results" in read({"select_recompute": ["mlp"]}).understood[-1]
    assert "which may be more than their results" not in " ".join(read({"recompute": True}).understood)


### Thresholds of automatic recomputation


@pytest.mark.parametrize(
    "config",
    [
        {"recompute_increment_threshold": 1000, "recompute_peak_threshold": 2000},
        {"graph_kernel_flags": "--recompute_increment_threshold=1000 --recompute_peak_threshold=2000 --opt_level=3"},
        {"context": {"graph_kernel_flags": "--recompute_peak_threshold=2000 --recompute_increment_threshold=1000"}},
        "context:\n  graph_kernel_flags: '--recompute_increment_threshold=1000 --recompute_peak_threshold=2000'\n",
    ],
    ids=str,
)
def test_thresholds_are_a_strategy(config):
    reading = policy_from_mindspore(config)
    assert reading.strategy == "mindspore:1000,2000" and reading.policy == Policy(
        name="mindspore-automatic", default="save"
    )
    assert "budget_bytes(step, *args)" in str(reading)


def test_thresholds_stand_beside_a_policy_and_thresholds_of_zero_are_none():
    flags = {"graph_kernel_flags": "--recompute_increment_threshold=4096"}
    reading = read({"context": flags, "recompute_config": {"recompute": [1, 2]}, "seed": 0})
    assert reading.strategy == "mindspore:4096,0" and reading.policy.regions.layers == "0,2-3"
    assert reading.ignored == ("context", "seed")
    assert read({"recompute": True, "recompute_increment_threshold": 0}).strategy == ""
    with pytest.raises(PolicyError, match="no thresholds of automatic recomputation"):
        read({"recompute": True}).budget_bytes(lambda x: x, 1.0)
    with pytest.raises(PolicyError, match="should be a whole number"):
        read({"recompute_increment_threshold": -1})


def test_the_budget_of_thresholds_is_the_total_that_they_lead_to():
    """What the planner finds within it takes no more memory, and no more time by its own estimate."""
    square = jax.ShapeDtypeStruct((128, 128), jnp.float32)

    def step(weights, x):
        def loss(weights):
            y = x
            for weight in weights:
                y = (y @ weight) * jnp.sin(y @ weight)
            return (y**2).sum()

        return jax.grad(loss)(weights)

    arguments = [square] * 4, jax.ShapeDtypeStruct((4096, 128), jnp.float32)
    reading = policy_from_mindspore({"recompute_increment_threshold": 2**20})
    planner = jaxckpt.Planner(step, *arguments, target="h200")
    budget_bytes = reading.budget_bytes(step, *arguments, target="h200")
    assert budget_bytes == planner.plan(budget=2**33, strategy=reading.strategy).footprint.total_bytes
    assert budget_bytes < planner.unplanned.total_bytes
    assert planner.plan(budget=budget_bytes).footprint.total_bytes <= budget_bytes
    above = policy_from_mindspore({"recompute_increment_threshold": 2**30})
    assert above.budget_bytes(step, *arguments, target="h200") == planner.unplanned.total_bytes


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"recompute": [1, 2, 3]}, "must add up to 1"),
        ({"recompute": "yes"}, "neither true, false nor a list"),
        ({"recompute": [1, "a"]}, "is not one count"),
        ({"recompute": True, "select_recomput": True}, "closest is 'select_recompute'"),
        ({"select_recompute_exclude": True}, "names no operators"),
        ({"swap_config": {"swap": True, "layer_swap": [{"layers": [9]}]}}, "numbers of layers below 4"),
        ({"swap_config": {"swap": True, "op_swap": [{"layers": True}]}}, "op_name is missing"),
        ({"swap_config": {"swp": True}}, "closest is 'swap'"),
        ({"recompute_config": 3}, "should be a table"),
        ("no such file.yaml", "neither a file"),
        ("a: [", "no YAML"),
    ],
)
def test_what_is_wrong_is_an_error(config, said):
    with pytest.raises(PolicyError) as caught:
        read(config)
    assert said in str(caught.value)


def test_counts_by_stage_need_the_number_of_layers():
    with pytest.raises(PolicyError, match="give num_layers"):
        policy_from_mindspore({"recompute": [1, 2]})


### PyNative


def test_full_layers_are_ranges_with_both_ends():
    reading = read({"recompute": {"mode": "full", "full_recompute_layer": ["0-1", "3"]}})
    assert recomputed_layers(reading.policy) == [0, 1, 3]


def test_modules_are_selected_by_layer_and_cover_children():
    modules = {"attn": ["0-1"], r"attn\.key": ["0-3"], "mlp": ["2"]}
    reading = read({"recompute": {"mode": "select", "select_module": modules}})
    assert [(rule.match.scope, rule.match.layers) for rule in reading.policy.rules] == [
        ("*/attn", "0-1"),
        ("*/attn/key", "2-3"),
        ("*/mlp", "2"),
    ]
    assert any("lies in a module" in said for said in reading.understood)


def test_communication_and_swaps_give_way_to_whole_layers():
    document = {
        "recompute": {"mode": "full", "full_recompute_layer": ["0-1"], "exclude_op": [r"mlp\.mul"]},
        "recompute_comm": {"enable": True, "select_module": {"attn": ["1-2"]}},
        "swap": {"enable": True, "default_prefetch": 2, "layer_swap": [{"layers": ["1-3"]}]},
    }
    reading = read(document)
    found = [(rule.match.layers, rule.decision) for rule in reading.policy.rules]
    assert found == [
        (None, Save()),
        (None, Save()),
        ("0-1", Recompute()),
        ("1-2", Recompute()),
        ("1-3", Offload(prefetch=2)),
    ]
    assert len([said for said in reading.understood if "gives way in layer 1," in said]) == 2


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"recompute": {"mode": "ful"}}, "closest is 'full'"),
        ({"recompute": {"mode": "full"}}, "full_recompute_layer is missing"),
        ({"recompute": {"mode": "select"}}, "select_module is missing"),
        ({"recompute": {"mode": "full", "full_recompute_layer": ["0-4"]}}, "layer 4 of '0-4' is not below 4"),
        ({"recompute": {"mode": "full", "full_recompute_layer": ["2-1"]}}, "begins behind its end"),
        ({"recompute": {"mode": "full", "full_recompute_layer": ["0-2", "2"]}}, "must ascend"),
        ({"recompute": {"mode": "full", "full_recompute_layer": ["first"]}}, "neither a layer nor a range"),
        ({"recompute": {"mode": "select", "select_module": ["attn"]}}, "is no list such as"),
        ({"recompute": {"mode": "None"}, "parallelism": {"pipeline_parallel": 2}}, "pipeline_parallel = 1"),
        ({"recompute": {}, "recompute_comm": {"enable": True}}, "select_module is missing"),
        ({"recompute": {}, "swap": {"enable": True, "default_prefetch": 4}}, "a whole number of 1 to 3"),
        ({"recompute": {"modus": "full"}}, "closest is 'mode'"),
    ],
)
def test_what_mindformers_refuses_is_an_error(document, said):
    with pytest.raises(PolicyError) as caught:
        read_policy(document, "mindspore", num_layers=4)
    assert said in str(caught.value)


def test_no_mode_recomputes_nothing():
    for mode in ("None", None):
        assert read({"recompute": {"mode": mode}}).policy == Policy(name="mindformers-pynative", default="save")


### Patterns


@pytest.mark.parametrize(
    ("pattern", "scope", "primitive"),
    [
        (r"feed_forward\.mul", "*/feed_forward", "mul"),
        (r"feed_forward\.w1\.activation\.silu", "*/feed_forward/w1/activation", "logistic"),
        (r".*\.norm", "*/*/norm", None),
        (r"attention.wq", "*/attention?wq", None),
        (r"w[qkv]", "*/w[qkv]", None),
        (r"w[^o]", "*/w[!o]", None),
        (r"(?:attn|attention)\.core", "*/{attn,attention}/core", None),
        (r"attn|mlp", "*/{attn,mlp}", None),
        (r"experts?", "*/expert{,s}", None),
        (r"^norm.+$", "*/norm?*", None),
        (r"add", None, "{add,add_any}"),
    ],
)
def test_a_pattern_becomes_globs(pattern, scope, primitive):
    assert target_of_pattern(pattern) == PatternTarget(scope=scope, primitive=primitive)


def test_a_glob_that_is_wider_than_its_pattern_says_so():
    reading = read({"select_recompute": [r"experts\.\d+\.w1"]})
    assert reading.policy.rules[0].match.scope == "*/experts/[0-9]*/w1"
    assert "also matches" in reading.not_carried[0]


@pytest.mark.parametrize("pattern", [r"a{2}", r"(ab)+", r"(a)\1", r"(?=x)y", r"a\b", "(", "a,b", r"[\d]x"])
def test_what_no_glob_says_is_said(pattern):
    with pytest.raises(PatternError):
        target_of_pattern(pattern)
    reading = read({"select_recompute": [pattern, "mlp"]})
    assert len(reading.policy.rules) == 1 and repr(pattern) in reading.not_carried[0]
