"""Compilers that are missing or do not fit are told apart, with the line to type."""

import importlib.metadata

import pytest

from jaxckpt import _compilers
from jaxckpt._compilers import Compiler, compiler_for, require_compiler
from jaxckpt._errors import MissingPackageError, VersionMismatchError
from jaxckpt.machine import Target, devices, targets

JAXLIB = importlib.metadata.version("jaxlib")


def status(name):
    return next(status for status in targets() if status.name == name)


@pytest.fixture
def not_looked_up(monkeypatch):
    """Devices that no other test has looked up."""
    monkeypatch.setattr(devices, "_compile_only_devices", devices._compile_only_devices.__wrapped__)


@pytest.fixture
def no_cuda(monkeypatch, not_looked_up):
    monkeypatch.setattr(_compilers._compat, "cuda_plugin", lambda: None)


@pytest.fixture
def old_cuda(monkeypatch, not_looked_up):
    monkeypatch.setattr(_compilers._compat, "cuda_plugin", lambda: ("xla_cuda12", None))
    known = {"jax-cuda12-plugin": JAXLIB, "jax-cuda12-pjrt": "0.4.1"}
    installed = _compilers._version
    monkeypatch.setattr(_compilers, "_version", lambda name: known.get(name) or installed(name))


def test_a_missing_plugin_is_an_import_error_with_a_line_to_type(no_cuda):
    with pytest.raises(MissingPackageError) as caught:
        _ = Target("h200:2").devices
    assert isinstance(caught.value, ImportError)
    assert caught.value.package == "jax-cuda13-plugin"
    assert str(caught.value) == (
        'target "h200:2" needs the compiler of its platform, which is not installed.\n'
        "  Got:    no package jax-cuda13-plugin\n"
        f"  Needed: jax-cuda13-plugin {JAXLIB} (no device, driver or CUDA installation is needed)\n"
        '  Try:    pip install "jaxckpt[gpu-targets]"'
    )


def test_a_missing_plugin_is_listed_and_the_processor_is_usable(no_cuda):
    assert not status("h200").usable
    assert status("h200").reason == "jax-cuda13-plugin is not installed"
    assert status("h200").install == 'pip install "jaxckpt[gpu-targets]"'
    assert status("cpu").usable
    assert status("cpu").install == ""


def test_a_plugin_half_of_which_is_of_another_version_is_refused(old_cuda):
    with pytest.raises(VersionMismatchError) as caught:
        _ = Target("h200").devices
    assert caught.value.version == "0.4.1"
    assert caught.value.needed_version == JAXLIB
    assert str(caught.value).endswith(f'pip install "jax-cuda12-plugin=={JAXLIB}"')
    assert not status("h200").usable
    assert status("h200").reason == f"jax-cuda12-plugin 0.4.1 does not fit jaxlib {JAXLIB}"


def test_missing_libtpu_is_told_with_its_own_extra(monkeypatch):
    monkeypatch.setattr(_compilers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="tpu-targets"):
        require_compiler("tpu", target="v5e:1x1")
    assert status("v5e").install == 'pip install "jaxckpt[tpu-targets]"'


def test_only_the_numbers_of_a_version_are_compared():
    fits = [
        Compiler(package="p", version=version, needed_version="0.12.0.1").fits
        for version in ("0.12.0.1", "0.12.0.1.dev3+cuda", "0.12.0", "0.12.0.2", None)
    ]
    assert fits == [True, True, False, False, False]


def test_the_processor_always_has_its_compiler():
    assert compiler_for("cpu") == Compiler(package="jaxlib", version=JAXLIB, needed_version=None)


def test_the_list_names_every_device_once_with_attached_first():
    names = [status.name for status in targets()]
    assert names[0] == "attached"
    assert len(names) == len(set(names)) == 14
    assert all(status.usable or status.install for status in targets())
    assert "yes cpu" in str(status("cpu"))
