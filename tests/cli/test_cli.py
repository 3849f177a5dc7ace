"""The shell: what it prints, what it writes, and how it fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jaxckpt._errors import StepReferenceError
from jaxckpt.cli.app import app
from jaxckpt.cli.console import run
from jaxckpt.cli.reference import load_step
from jaxckpt.fit import load_plan
from tests.fit.test_planner import needs_compiler

TRAIN = """
import jax, jax.numpy as jnp

def step(ws, x):
    def loss(ws):
        h = x
        for w in ws:
            h = jnp.tanh(h @ w)
        return (h**2).mean()
    return jax.grad(loss)(ws)

def make_step():
    ws = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 8
    return step, (ws, jax.ShapeDtypeStruct((4096, 64), jnp.float32))

def make_dict():
    step, args = make_step()
    return {"step": step, "args": args, "donate_argnums": 0}

def make_nothing():
    return 3

def make_broken():
    raise RuntimeError("my own mistake")
"""


@pytest.fixture
def train(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def shell(*words: str):
    return CliRunner().invoke(app, list(words))


def test_analyze_shows_scopes_and_says_that_nothing_was_compiled(train):
    shown = shell("analyze", f"{train}:make_step")
    assert shown.exit_code == 0, shown.output
    assert "kept from forward to backward" in shown.output
    assert "nothing was compiled" in shown.output


def test_json_is_one_object_and_nothing_else(train):
    shown = shell("analyze", f"{train}:make_dict", "--json")
    data = json.loads(shown.stdout)
    assert data["op_count"] > 0
    assert sum(scope["kept_bytes"] for scope in data["scopes"]) > 0


def test_targets_are_listed(train):
    names = {entry["name"] for entry in json.loads(shell("targets", "--json").stdout)["targets"]}
    assert {"h200", "a100-80", "v5e", "cpu"} <= names


@needs_compiler
def test_plan_writes_a_plan_that_loads(train, tmp_path):
    shown = shell("plan", f"{train}:make_dict", "--budget", "8MiB", "-o", str(tmp_path / "plan.toml"))
    assert shown.exit_code == 0, shown.output
    assert "compiled total" in shown.stdout
    assert load_plan(tmp_path / "plan.toml").footprint.total_bytes <= 8 * 2**20


@needs_compiler
def test_exit_codes_tell_infeasible_from_refused(train, capfd):
    assert run(lambda: app(["plan", f"{train}:make_step", "--budget", "3MiB"], standalone_mode=False)) == 3
    assert "InfeasibleBudgetError" in capfd.readouterr().err
    assert run(lambda: app(["plan", f"{train}:make_step", "--budget", "6 apples"], standalone_mode=False)) == 2
    assert "Try:" in capfd.readouterr().err


def test_an_interrupt_is_130():
    def interrupted():
        raise KeyboardInterrupt

    assert run(interrupted) == 130


def test_several_budgets_and_one_file_are_refused(train):
    words = ("plan", f"{train}:make_step", "--budget", "1GiB", "--budget", "2GiB", "-o", "plan.toml")
    assert run(lambda: app(list(words), standalone_mode=False)) == 2


@pytest.mark.parametrize(
    ("reference", "needed"),
    [
        ("train.py:make_stepp", "train.py:make_step"),
        ("train.py", "module:function"),
        ("nowhere.py:make_step", "a file that is there"),
        ("no_such_module:make_step", "can be imported"),
        ("train.py:make_nothing", "step, args"),
    ],
)
def test_a_reference_that_is_no_step_is_refused_with_advice(train, reference, needed):
    with pytest.raises(StepReferenceError) as caught:
        load_step(reference)
    assert needed in str(caught.value)


def test_the_users_own_mistake_keeps_its_traceback(train):
    with pytest.raises(RuntimeError, match="my own mistake"):
        load_step("train.py:make_broken")


def test_the_module_runs_as_a_program():
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "jaxckpt", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    assert done.returncode == 0
    assert done.stdout.startswith("jaxckpt ")
