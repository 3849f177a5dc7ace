"""Targets: names, equality, printing, and what is wrong with a bad name. No compiler is loaded here."""

import pathlib
import pickle
import subprocess
import sys
from dataclasses import replace
from typing import ClassVar

import jax
import pytest
from hypothesis import given, settings, strategies as st

from jaxckpt._errors import TargetError, UnknownTargetError
from jaxckpt.machine import (
    CpuFacts,
    Target,
    UnknownDeviceFacts,
    devices as devices_module,
    known_facts,
    target as target_module,
)
from jaxckpt.machine.topology import topology_of

SHIPPED = pathlib.Path(target_module.__file__).parent / "facts"


@pytest.mark.parametrize(
    ("name", "canonical", "hosts", "devices"),
    [
        ("h200", "h200", 1, 1),
        ("h200:1", "h200", 1, 1),
        ("h200:8", "h200:8", 1, 8),
        ("h200:1x8", "h200:8", 1, 8),
        ("h200:64x8", "h200:64x8", 64, 512),
        ("v5e", "v5e:1x1", 1, 1),
        ("v5e:2x2", "v5e:2x2", 1, 4),
        ("v5e:4x4", "v5e:4x4", 4, 16),
        ("v5p:2x2x1", "v5p:2x2x1", 1, 4),
        ("v4:4x4x4", "v4:4x4x4", 16, 64),
        ("cpu", "cpu", 1, 1),
        ("cpu:4", "cpu:4", 1, 4),
    ],
)
def test_a_name_says_how_many_devices_stand_in_how_many_hosts(name, canonical, hosts, devices):
    target = Target(name)
    assert target.name == canonical
    assert (target.host_count, target.device_count) == (hosts, devices)
    assert target.kind == name.partition(":")[0]
    assert target == Target(canonical)
    assert hash(target) == hash(Target(canonical))


@given(st.integers(1, 4096), st.integers(1, 64))
@settings(derandomize=True)
def test_every_gpu_topology_reads_back_from_its_own_name(hosts, devices):
    target = Target(f"a100-80:{hosts}x{devices}")
    assert Target(target.name) == target
    assert target.device_count == hosts * devices


def test_targets_differ_by_name_and_by_facts(tmp_path):
    assert Target("h200") != Target("h100")
    assert Target("h200") != Target("h200:8")
    own = tmp_path / "h200.toml"
    own.write_text((SHIPPED / "h200.toml").read_text())
    before = Target(str(own))
    own.write_text(own.read_text().replace("core_count = 132", "core_count = 66"))
    assert Target(str(own)) != before
    assert Target(str(own)).name == before.name


def test_a_target_prints_as_what_would_make_it():
    assert repr(Target("h200:1x8")) == "Target('h200:8')"
    assert str(Target("h200:8")) == "h200:8: 8 x NVIDIA H200 141GB HBM3e, 141.00 GiB each, compile only"
    assert str(Target("cpu")) == "cpu: a processor, 16.00 GiB each, in this process"


def test_a_target_survives_pickling_and_is_its_own_copy():
    assert pickle.loads(pickle.dumps(Target("h200:8"))) == Target("h200:8")
    assert Target(Target("h200:8")) == Target("h200:8")


def test_a_target_cannot_be_changed():
    with pytest.raises(AttributeError):
        Target("h200").name = "h100"


def test_a_users_own_file_is_a_target_with_or_without_topology(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text((SHIPPED / "h100.toml").read_text())
    target = Target(str(path))
    assert target.facts == known_facts()["h100"]
    assert target.name == str(path)
    assert target == Target.from_facts(path)
    assert Target(f"{path}:2x4") == Target.from_facts(path, "2x4")
    assert Target(f"{path}:2x4").device_count == 8


@pytest.mark.parametrize("name", ["h2000", "H100", "a100", "v5", "", 5, "attached:3"])
def test_the_error_of_an_unknown_name_has_the_known_ones(name):
    with pytest.raises(UnknownTargetError) as caught:
        Target(name)
    assert isinstance(caught.value, LookupError)
    assert isinstance(caught.value, ValueError)
    assert "h200, rtx-pro-6000" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "advice"),
    [("a100", '"a100-40" or "a100-80"'), ("gpu", '"h200"; jaxckpt.targets() lists all'), ("h20", '"h200"')],
)
def test_advice_names_devices_that_are_meant(name, advice):
    with pytest.raises(UnknownTargetError) as caught:
        Target(name)
    assert str(caught.value).endswith(f"Try:    {advice}")


def test_the_closest_name_is_offered():
    with pytest.raises(UnknownTargetError) as caught:
        Target("a100_80")
    assert caught.value.closest[0] == "a100-80"
    assert str(caught.value).endswith('\n  Try:    "a100-80"')


@pytest.mark.parametrize("name", ["h200:0", "h200:axb", "h200:", "h200:8x", "h200:0x8", "h200:2x2x2"])
def test_the_error_of_a_bad_gpu_topology_has_the_form(name):
    with pytest.raises(TargetError) as caught:
        Target(name)
    assert str(caught.value) == (
        f'target "{name}" has no such topology.\n'
        f'  Got:    "{name.partition(":")[2]}"\n'
        '  Needed: a number of devices such as ":8" (one host), or hosts x devices of each such as ":64x8"\n'
        '  Try:    "h200:8"'
    )


def test_the_error_of_a_bad_tpu_topology_has_usual_ones():
    with pytest.raises(TargetError) as caught:
        Target("v5e:3x5x7")
    assert "chips along 2 axes, such as 1x1, 2x2, 2x4" in str(caught.value)
    with pytest.raises(TargetError, match="along 3 axes"):
        Target("v5p:2x2")


def test_a_too_large_mesh_is_refused_without_a_compiler():
    with pytest.raises(TargetError) as caught:
        Target("h200").mesh((2, 4), ("data", "model"))
    assert "has too few devices for a mesh of 2x4" in str(caught.value)
    assert str(caught.value).endswith('a target of 8 devices, "h200:8"')


def test_more_processors_than_there_are_are_refused():
    with pytest.raises(TargetError, match="at most"):
        _ = Target("cpu:4096").devices


def test_attached_is_what_jax_has_by_default():
    target = Target("attached")
    assert target.devices == tuple(jax.devices())
    assert target.sharding.device_set == {jax.devices()[0]}
    assert target.attached
    assert not target.compile_only
    assert target == Target("attached")
    assert target.memory_bytes > 2**28


class FakeDevice:
    """An attached GPU, as far as we look at one."""

    platform = "gpu"
    statistics: ClassVar = {"bytes_limit": 7}

    def __init__(self, device_kind):
        self.device_kind = device_kind

    def memory_stats(self):
        if self.statistics is None:
            raise RuntimeError("UNIMPLEMENTED")
        return self.statistics


def test_an_attached_device_is_found_among_the_facts_by_its_kind(monkeypatch):
    monkeypatch.setattr(devices_module.jax, "local_devices", lambda: [FakeDevice("NVIDIA H200")])
    target = Target("attached")
    assert target.kind == "h200"
    assert target.platform == "cuda"
    assert target.memory_bytes == 7
    assert target.rates.matmul("bfloat16") == 7.9e14


def test_an_attached_device_in_no_file_has_memory_but_no_rates(monkeypatch):
    monkeypatch.setattr(devices_module.jax, "local_devices", lambda: [FakeDevice("Tensor 9000")])
    target = Target("attached")
    assert target.facts == UnknownDeviceFacts(
        description="Tensor 9000",
        platform="cuda",
        device_memory_bytes=7,
        device_kinds=("Tensor 9000",),
    )
    assert target.kind == "Tensor 9000"
    with pytest.raises(TargetError, match="speed of target"):
        _ = target.rates


def test_a_device_without_statistics_has_the_memory_of_its_file(monkeypatch):
    monkeypatch.setattr(FakeDevice, "statistics", None)
    monkeypatch.setattr(devices_module.jax, "local_devices", lambda: [FakeDevice("NVIDIA H200")])
    assert Target("attached").memory_bytes == known_facts()["h200"].device_memory_bytes


def test_the_attached_processor_has_the_memory_of_this_machine():
    facts = devices_module._this_processor()
    assert isinstance(facts, CpuFacts)
    assert facts.device_memory_bytes != known_facts()["cpu"].device_memory_bytes


def test_importing_targets_loads_and_starts_nothing():
    code = (
        "import sys, jaxckpt.machine, jaxckpt._compat as compat\n"
        "jaxckpt.machine.Target('h200:8').rates, jaxckpt.machine.targets()\n"
        "assert not compat.backends_are_initialised()\n"
        "assert not {'flax', 'scipy', 'optax', 'matplotlib', 'libtpu'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("h200@cal.toml", ("h200", "cal.toml")),
        ("h200:8@cal.toml", ("h200:8", "cal.toml")),
        ("./mine.toml@cal.toml", ("./mine.toml", "cal.toml")),
        ("a/mine.toml:8@b/cal.toml", ("a/mine.toml:8", "b/cal.toml")),
        ("./a@b/mine.toml", ("./a@b/mine.toml", None)),
    ],
)
def test_a_calibration_follows_any_name(name, parts):
    assert target_module._calibration_split(name) == parts


@pytest.mark.parametrize("topologies", [(), ("2x2",)])
def test_a_tpu_with_few_usual_topologies_may_have_others(topologies):
    facts = replace(known_facts()["v5e"], topologies=topologies)
    assert topology_of("4x4", facts, called="mine").device_count == 16
    with pytest.raises(TargetError, match="chips along 2 axes"):
        topology_of("4", facts, called="mine")
