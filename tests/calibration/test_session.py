"""The whole of it on processors: figures, files, targets, and what is said of time that ran out."""

import re

import jax
import pytest

import jaxckpt
from jaxckpt.calibration import session as sessions
from jaxckpt.calibration.kernels import Speeds, probes
from jaxckpt.calibration.session import driver_of, platform_of
from jaxckpt.machine import load_calibration
from jaxckpt.report import calibration_report, render_text


@pytest.fixture(scope="module")
def made():
    return jaxckpt.calibrate(seconds=60.0)


def test_every_probe_has_a_figure(made):
    whats = {each.what for each in made.measured}
    assert {probe.what for probe in probes(Speeds(), small=True)} <= whats
    assert {"start", "copy to host", "copy from host", "copy both ways", "all-reduce"} <= whats
    assert all(each.value >= 0 and each.count >= 5 for each in made.measured)
    assert "not measured" not in made.source


def test_a_processor_is_a_smoke_test_and_says_so(made):
    assert made.smoke and "smoke test" in made.source
    assert "figures mean nothing" in render_text(calibration_report(made)).lower()


def test_a_saved_calibration_is_loaded_by_targets(made, tmp_path):
    path = tmp_path / "mine.toml"
    made.save(path)
    assert load_calibration(path) == made
    rates = jaxckpt.Target("attached", calibrated=path).rates
    assert rates.matmul("bfloat16") == dict(made.matmul_flops_per_s)["bfloat16"]
    assert rates.launch_s == made.launch_s and rates.source == made.source
    assert jaxckpt.Target(f"cpu@{path}").rates.launch_s == made.launch_s


def test_a_plan_uses_the_calibrated_rates(made, tmp_path):
    path = tmp_path / "mine.toml"
    made.save(path)
    w, x = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((16, 16), (4, 16)))
    step = jax.grad(lambda w, x: (jax.numpy.tanh(x @ w) @ w).sum())
    planner = jaxckpt.Planner(step, w, x, target=f"cpu@{path}")
    assert planner.problem.rates.source == made.source


def test_time_that_runs_out_leaves_the_rest_to_the_datasheet():
    ticks = iter(range(10**6))
    made = jaxckpt.calibrate(seconds=1.0, clock=lambda: float(next(ticks)))
    assert [each.what for each in made.measured] == ["start", "launch"]
    left = len(list(probes(Speeds(), small=True))) - 1 + 2  # and both kinds of copies
    assert re.search(rf"; {left} figures left out for time", made.source)
    assert made.matmul_flops_per_s == () and made.vector_flops_per_s is None


def test_a_probe_that_fails_is_noted_and_the_others_go_on(monkeypatch):
    def refused(device, *_, **__):
        raise RuntimeError("out of pinned memory\nand more")

    monkeypatch.setattr(sessions, "measured_copies", refused)
    made = jaxckpt.calibrate(seconds=3.0)
    assert "not measured: copies (RuntimeError: out of pinned memory)" in made.source
    assert {"launch", "elementwise"} <= {each.what for each in made.measured}


def test_the_driver_is_the_kernel_modules_where_there_is_one(tmp_path):
    class Gpu:
        platform = "gpu"

        class client:
            platform_version = "PJRT C API\ncuda 13000"

    file = tmp_path / "version"
    assert driver_of(Gpu, file=file) == "PJRT C API cuda 13000"
    file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03  Mon\nGCC version: gcc 12.3.0")
    assert driver_of(Gpu, file=file) == "580.159.03, PJRT C API cuda 13000"
    assert platform_of(Gpu) == "cuda"


def test_a_device_that_runs_nothing_is_said(monkeypatch):
    def refuse(*_):
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr(jax, "device_put", refuse)
    with pytest.raises(jaxckpt.TargetError, match="does not run a program of one addition"):
        jaxckpt.calibrate(seconds=1.0)
