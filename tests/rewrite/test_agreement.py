"""Two real processes of four devices each: the same plan, the same gradients, and no deadlock where plans differ."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxckpt import _compat
from tests.rewrite import two_processes

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240


def free_port() -> str:
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return str(listening.getsockname()[1])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """What both processes found, by process. They write to files: a full pipe would hold one up, and so both."""
    folder, port = tmp_path_factory.mktemp("run"), free_port()
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=4"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    started = []
    for index in range(2):
        command = [sys.executable, "-m", "tests.rewrite.two_processes", port, str(index), str(folder)]
        with (folder / f"{index}.log").open("wb") as log:
            started.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log))
    try:
        codes = [process.wait(timeout=PATIENCE_S) for process in started]
    finally:
        for process in started:
            process.kill()
    logs = [(folder / f"{index}.log").read_text(errors="replace")[-4000:] for index in range(2)]
    assert codes == [0, 0], "\n\n".join(logs)
    return [json.loads((folder / f"{index}.json").read_text()) for index in range(2)]


def expected():
    results = jax.jit(two_processes.step)(*two_processes.arrays())
    return [float(v) for leaf in jax.tree.leaves(results) for v in np.asarray(leaf).ravel()]


def test_there_are_two_processes_of_four_devices(run):
    assert [(found["devices"], found["local"]) for found in run] == [(8, 4), (8, 4)]


@pytest.mark.parametrize("how", ["unplanned", "partitioned", "inside jit", "planned", "jit"])
def test_gradients_are_those_of_one_process(run, how):
    for found in run:
        np.testing.assert_allclose(found[how], expected(), rtol=2e-5, atol=1e-6)


def test_processes_come_to_the_same_plan_by_themselves(run):
    first, second = run
    assert first["made here"] == second["made here"]


def test_a_plan_made_once_is_the_same_everywhere(run):
    assert run[0]["made once"]["equal"]
    for index, found in enumerate(run):
        assert found["made once"]["digest"] == found["made here"]
        assert found["made once"]["made"] == ([] if index else [0])


def test_a_plan_may_be_made_before_any_process_has_its_devices(run):
    for found in run:
        assert found["made before there are devices"] == found["made here"]


def test_jit_plans_on_one_process_for_all(run):
    assert run[0]["jit's plan"] == run[1]["jit's plan"]


def test_different_plans_stop_every_process_before_anything_runs(run):
    for found in run:
        assert "have different plans" in found["different"]
        assert "process 0: step" in found["different"]
        assert "process 1: step" in found["different"]
        assert "plan_once" in found["different"]


def test_a_plan_that_cannot_be_made_is_an_error_everywhere(run):
    assert run[0]["failed"].startswith("no plan.")
    assert "6 apples" in run[1]["failed"]


def test_a_process_that_does_not_come_is_named(run):
    assert "process 1 of this run does not answer" in run[0]["alone"]
    assert "waited for 2 s" in run[0]["alone"]


def test_a_step_on_devices_of_its_own_asks_nobody(run):
    assert run[0]["own devices"] == ""


def test_one_process_is_no_run():
    assert _compat.distributed_run() is None
