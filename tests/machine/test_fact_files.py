"""Fact files: what ships is complete, and what is wrong with a user's own is said at once."""

import dataclasses

import pytest

from jaxckpt._errors import TargetError, UnknownTargetError
from jaxckpt.machine.device_facts import CpuFacts, GpuFacts, TpuFacts
from jaxckpt.machine.fact_files import facts_from_toml, known_facts, load_facts

LAPTOP = """
platform = "cpu"
description = "my laptop"
device_memory_bytes = 34359738368
memory_bandwidth = 60000000000
f32_flops = 1e12
host_link_bandwidth = 60e9
"""


def test_every_promised_device_has_facts_of_its_platform():
    gpus = {"h200", "h100", "h100-pcie", "a100-80", "a100-40", "b200", "gb200", "rtx-pro-6000"}
    assert {name for name, facts in known_facts().items() if isinstance(facts, GpuFacts)} == gpus
    tpus = {"v4", "v5e", "v5p", "v6e"}
    assert {name for name, facts in known_facts().items() if isinstance(facts, TpuFacts)} == tpus
    assert {name for name, facts in known_facts().items() if isinstance(facts, CpuFacts)} == {"cpu"}


def test_facts_are_hashable_and_frozen():
    facts = known_facts()["h200"]
    assert hash(facts) == hash(dataclasses.replace(facts))
    with pytest.raises(dataclasses.FrozenInstanceError):
        facts.core_count = 1


def test_the_derived_tensor_rate_is_that_of_the_datasheet():
    assert known_facts()["h200"].tensor_flops == pytest.approx(989e12, rel=1e-3)
    assert known_facts()["h100-pcie"].tensor_flops == pytest.approx(756e12, rel=2e-3)
    assert known_facts()["b200"].tensor_flops == pytest.approx(2250e12, rel=2e-2)


def test_no_device_kind_is_claimed_by_two_files():
    kinds = [kind for facts in known_facts().values() for kind in facts.device_kinds]
    assert len(kinds) == len(set(kinds))


def test_a_users_own_file_is_read(tmp_path):
    path = tmp_path / "laptop.toml"
    path.write_text(LAPTOP)
    assert load_facts(path) == CpuFacts(
        description="my laptop",
        device_memory_bytes=2**35,
        memory_bandwidth=60_000_000_000,
        f32_flops=1e12,
        host_link_bandwidth=60e9,
    )


def test_all_problems_of_a_file_are_reported_and_numbered():
    text = LAPTOP.replace("f32_flops", "f32_flop").replace("34359738368", '"32 GiB"') + "colour = 3\n"
    with pytest.raises(TargetError) as caught:
        facts_from_toml(text, source="laptop.toml")
    assert caught.value.problems == (
        "f32_flops is missing: a number above 0",
        "device_memory_bytes = '32 GiB' should be a whole number above 0",
        "f32_flop is no key; the closest is 'f32_flops'",
        "colour is no key",
    )
    assert str(caught.value).startswith("fact file laptop.toml does not describe a device.\n  Got:    (1) ")
    assert "(4) colour is no key" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (('platform = "cpu"', 'platform = "gpu"'), "platform = 'gpu' is none of"),
        (("f32_flops = 1e12", "f32_flops = 0"), "f32_flops = 0 should be a number above 0"),
        (("f32_flops = 1e12", "f32_flops = true"), "f32_flops = True should be a number above 0"),
        (('"my laptop"', '""'), "description = '' should be a text"),
        (("f32_flops = 1e12", "f32_flops = "), "it is no TOML: "),
        (
            ("f32_flops = 1e12", "f32_flops = 1e12\nmeasured_memory_bandwidth = 5e10"),
            "measured_source is missing",
        ),
    ],
)
def test_a_wrong_value_is_refused(change, problem):
    with pytest.raises(TargetError, match="fact file laptop") as caught:
        facts_from_toml(LAPTOP.replace(*change), source="laptop.toml")
    assert any(each.startswith(problem) for each in caught.value.problems)


def test_a_gpu_needs_matrix_rate_link_and_limits_of_three():
    facts = known_facts()["a100-80"]
    broken = dataclasses.replace(
        facts,
        bf16_flops=None,
        pcie_bandwidth=None,
        block_dim_limit=(1, 2),
        compute_capability="nine",
    )
    problems = list(broken.problems())
    assert len(problems) == 4
    assert list(facts.problems()) == []


def test_a_file_that_is_not_there_is_an_unknown_target(tmp_path):
    with pytest.raises(UnknownTargetError, match="No such file") as caught:
        load_facts(tmp_path / "none.toml")
    assert isinstance(caught.value, LookupError)
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_a_file_that_is_no_text_is_an_unknown_target(tmp_path):
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UnknownTargetError, match="cannot be read"):
        load_facts(path)
