"""The shell: what it prints, what it writes, and how it fails."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import jaxckpt.cli
from jaxckpt._errors import StepReferenceError
from jaxckpt.cli.app import app
from jaxckpt.cli.console import Shell, run
from jaxckpt.cli.reference import load_step
from jaxckpt.planner import load_plan
from tests.planner.test_planner import needs_compiler

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

def make_half():
    return {"step": step, "arguments": ()}

def make_loud():
    print("loud")
    return make_step()

def make_waiting():
    import signal, sys, time
    print("waiting", file=sys.stderr, flush=True)
    time.sleep(60)
"""
ROOT = Path(__file__).parents[2]


@pytest.fixture
def train(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def shell(*words: str):
    return CliRunner().invoke(app, list(words))


def exit_code(*words: str) -> int:
    """What the program would exit with."""
    return run(lambda: app(list(words), standalone_mode=False))


def program(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "jaxckpt", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment)


def test_analyze_shows_scopes_and_says_that_nothing_was_compiled(train):
    shown = shell("analyze", f"{train}:make_step")
    assert shown.exit_code == 0, shown.output
    assert "saved from forward to backward" in shown.output
    assert "nothing was compiled" in shown.output


def test_json_is_one_object_and_nothing_else(train):
    shown = shell("analyze", f"{train}:make_dict", "--json")
    data = json.loads(shown.stdout)
    assert data["op_count"] > 0
    assert sum(scope["kept_bytes"] for scope in data["scopes"]) > 0


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A run of a program that prints, without a terminal."""
    folder = tmp_path_factory.mktemp("loud")
    (folder / "train.py").write_text(TRAIN)
    return program("analyze", "train.py:make_loud", "--json", cwd=folder)


def test_what_the_users_code_prints_does_not_get_into_the_json(done):
    assert done.returncode == 0
    assert json.loads(done.stdout)["step"] == "step"
    assert "loud" in done.stderr


def test_progress_without_a_terminal_is_lines_on_standard_error(done):
    assert "tracing the step" in done.stderr
    assert "tracing the step" not in done.stdout
    assert "\x1b" not in done.stderr + done.stdout


def test_progress_on_a_terminal_names_the_work_and_its_duration(monkeypatch):
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        with Shell().progress() as say:
            say("compiling for [h200]")
            say("solving")
        terminal.flush()
        os.set_blocking(ours, False)
        shown = b"".join(iter(lambda: _waiting(ours), b"")).decode()
    assert "compiling for [h200]: " in shown
    assert "solving: " in shown


def _waiting(terminal):
    """What can be read of a terminal at once; nothing where all has been read."""
    try:
        return os.read(terminal, 65536)
    except BlockingIOError:
        return b""


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
def test_a_budget_that_cannot_be_met_does_not_hide_the_others(train, capfd):
    words = ("plan", f"{train}:make_step", "--budget", "4MiB", "--budget", "12MiB", "--json")
    assert exit_code(*words) == 3
    printed = capfd.readouterr()
    data = json.loads(printed.out)
    (made,), (refused,) = data["plans"], data["refused"]
    assert made["total_bytes"] <= made["budget_bytes"] == 12 * 2**20
    assert refused["budget"] == "4MiB"
    assert refused["minimum_bytes"] > 4 * 2**20
    assert "InfeasibleBudgetError" in printed.err


@needs_compiler
@pytest.mark.parametrize(
    ("words", "allow"),
    [((), ("recompute",)), (("--allow", "recompute, offload"), ("recompute", "offload"))],
)
def test_the_planner_may_do_what_is_allowed(train, monkeypatch, words, allow):
    planners = []

    class Noted(jaxckpt.Planner):
        def plan(self, **asked):
            planners.append(self)
            return super().plan(**asked)

    monkeypatch.setattr("jaxckpt.planner.Planner", Noted)
    assert shell("plan", f"{train}:make_step", "--budget", "12MiB", "--json", *words).exit_code == 0
    assert [planner.options.allow for planner in planners] == [allow]


@needs_compiler
def test_a_share_of_the_unplanned_footprint_is_a_budget(train):
    shown = shell("plan", f"{train}:make_step", "--budget", "0.9", "--json", "--strategy", "full")
    (made,) = json.loads(shown.stdout)["plans"]
    assert made["strategy"] == "full"


@pytest.mark.parametrize(
    "words",
    [
        ("--budget", "6 apples"),
        ("--budget", "1GiB", "--budget", "6 apples"),
        ("--budget", "1GiB", "--allow", "recompute,partitions"),
        ("--budget", "1GiB", "--allow", "offload"),
        ("--budget", "1GiB", "--budget", "2GiB", "-o", "plan.toml"),
        ("--budget", "1GiB", "-o", "no/plan.toml"),
    ],
    ids=["no budget", "no second budget", "no such word", "no recomputation", "two budgets, one file", "no folder"],
)
def test_wrong_options_are_reported_before_user_code_is_loaded(train, words, capfd):
    assert exit_code("plan", "no_such_module:make_step", *words) == 2
    said = capfd.readouterr().err
    assert "Try:" in said
    assert "StepReferenceError" not in said


def test_errors_are_four_lines_however_narrow_the_window_is(train, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    assert exit_code("analyze", "train.py:make_nothing") == 2
    lines = capfd.readouterr().err.splitlines()
    assert [line.split(":")[0].strip() for line in lines[-3:]] == ["Got", "Needed", "Try"]
    assert lines[-4].startswith("StepReferenceError: ")


def test_an_interrupt_is_130(train):
    # Whoever runs the tests in the background ignores interrupts, and what they start does too.
    heeding = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    start = f"{heeding}; runpy.run_module('jaxckpt', run_name='__main__')"
    command = [sys.executable, "-c", start, "analyze", "train.py:make_waiting"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=train.parent, env=environment, stderr=subprocess.PIPE, text=True) as waiting:
        while "waiting" not in waiting.stderr.readline():
            assert waiting.poll() is None
        waiting.send_signal(signal.SIGINT)
        said = waiting.stderr.read()
    assert waiting.returncode == 130
    assert "Interrupted" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("reference", "needed"),
    [
        ("train.py:make_stepp", "train.py:make_step"),
        ("train.py", "module:function"),
        ("nowhere.py:make_step", "a file that is there"),
        ("trian.py:make_step", "train.py:make_step"),
        ("no_such_module:make_step", "can be imported"),
        ("trian:make_step", "train:make_step"),
        ("no_such.train:make_step", "can be imported"),
        ("train.py:make_nothing", "step, args"),
        ("train.py:make_half", "arguments: tuple"),
        ("train.py:step", "ws, x: perhaps it is the step itself"),
        (":make_step", "module:function"),
    ],
)
def test_a_reference_that_is_no_step_is_refused_with_advice(train, reference, needed):
    with pytest.raises(StepReferenceError) as caught:
        load_step(reference)
    assert needed in str(caught.value)


def test_the_users_own_mistake_keeps_its_traceback(train):
    with pytest.raises(RuntimeError, match="my own mistake"):
        load_step("train.py:make_broken")


def test_a_missing_import_in_user_code_is_the_error_of_the_user(train):
    (train.parent / "incomplete.py").write_text("import no_such_package")
    for reference in ("incomplete:make_step", "incomplete.py:make_step"):
        with pytest.raises(ModuleNotFoundError, match="no_such_package"):
            load_step(reference)


def test_a_file_may_have_the_name_of_a_module_that_is_loaded(train):
    path = train.rename(train.parent / "json.py")
    assert load_step(f"{path}:make_step").args
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("given", "nodes", "expected"),
    [(None, (), "cpu"), (None, ("there",), None), ("cuda", (), "cuda")],
    ids=["no accelerator", "an accelerator", "the user's choice"],
)
def test_jax_looks_for_no_accelerator_where_none_is(tmp_path, monkeypatch, given, nodes, expected):
    monkeypatch.delenv("JAX_PLATFORMS")
    if given:
        monkeypatch.setenv("JAX_PLATFORMS", given)
    for node in nodes:
        (tmp_path / node).touch()
    monkeypatch.setattr(jaxckpt.cli, "_DEVICE_NODES", (str(tmp_path / "there"),))
    jaxckpt.cli.look_for_no_accelerator_where_none_is()
    assert os.environ.get("JAX_PLATFORMS") == expected


def test_the_module_runs_as_a_program():
    done = program("--version", cwd=ROOT)
    assert done.returncode == 0
    assert done.stdout.startswith("jaxckpt ")
