"""The start of the shell: what it answers without jax, how it ends when interrupted, and what it shows of mistakes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from jaxckpt.cli.app import VERBS, app
from jaxckpt.cli.console import Shell, run
from jaxckpt.cli.plan import _STRATEGIES
from jaxckpt.report import Scatter, Section, Table, Text, print_report
from jaxckpt.report.tree import columns
from jaxckpt.solve import STRATEGIES

ROOT = Path(__file__).parents[2]
HEAVY = {"jax", "numpy", "scipy", "tomlkit", "google.protobuf"}
LOADED = """
import sys
from jaxckpt.cli.app import app
try:
    app(sys.argv[1:])
except SystemExit:
    pass
print("loaded:", *sys.modules, file=sys.stderr)
"""
TRAIN = """
import json

def parse():
    return json.loads("no json")

def make_broken():
    try:
        parse()
    except ValueError as error:
        raise RuntimeError("my own mistake") from error
"""
INTERRUPTED = """
import signal, sys, time
import jaxckpt.cli, jaxckpt.cli.app

def waiting():
    signal.signal(signal.SIGINT, {heeding})
    print("waiting", file=sys.stderr, flush=True)
    for _ in range(600):
        time.sleep(0.1)

jaxckpt.cli.app.app = waiting
jaxckpt.cli.main()
"""


@pytest.fixture
def train(tmp_path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def python(code: str, *words: str, **environment: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, env=environment)


@pytest.mark.parametrize(
    "words",
    [("--version",), ("--help",), ("plna",), ("plan", "--help"), ("plan", "a:b", "--bugdet", "3")],
    ids=["version", "help", "no such verb", "help of a verb", "no such option"],
)
def test_what_needs_no_jax_is_answered_without_it(words):
    done = python(LOADED, *words)
    loaded = set(done.stderr.rpartition("loaded:")[2].split())
    assert "typer" in loaded
    assert not HEAVY & loaded


@pytest.mark.parametrize("words", [("--budget", "6 apples"), ()], ids=["no amount", "no budget"])
def test_a_mistyped_budget_is_refused_without_jax(words):
    done = python(LOADED, "plan", "train.py:make", *words)
    assert "Needed:" in done.stderr
    assert "import jax" not in done.stderr


def test_every_verb_can_be_completed():
    done = python(LOADED, _JAXCKPT_COMPLETE="complete_bash", COMP_WORDS="jaxckpt ", COMP_CWORD="1")
    assert {verb.replace("_", "-") for verb in VERBS} <= set(done.stdout.split())


def test_the_help_names_every_strategy():
    assert _STRATEGIES.partition(";")[0].split(", ") == list(STRATEGIES)


@pytest.mark.parametrize("heeding", ["signal.default_int_handler", "lambda *_: None"], ids=["at once", "deaf"])
def test_an_interrupt_ends_with_a_sentence_and_130(heeding):
    command = [sys.executable, "-c", INTERRUPTED.format(heeding=heeding)]  # a compile of XLA is deaf to it, too
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr.readline() == "waiting\n"
        waiting.send_signal(signal.SIGINT)
        said = waiting.stderr.read()
    assert waiting.returncode == 130
    assert said.strip() == "Interrupted: nothing more is done."


def exit_code(*words: str) -> int:
    return run(lambda: app(list(words), standalone_mode=False))


def test_a_users_exception_comes_first_and_without_our_frames(train, monkeypatch, capfd):
    monkeypatch.chdir(train.parent)
    assert exit_code("analyze", "train.py:make_broken") == 1
    said = capfd.readouterr().err.partition("Traceback")
    assert said[0].endswith("RuntimeError: my own mistake\n")
    assert "JSONDecodeError" in said[2]  # its cause
    assert "in make_broken" in said[2]
    assert not any(each in said[2] for each in ("typer", "jaxckpt/cli", "importlib", "runpy"))


def test_our_own_mistake_shows_all_frames(capfd):
    assert run(lambda: print_report(Scatter(title="", x_heading="", y_heading="", points=(3,)), None)) == 1
    assert "jaxckpt/report/text.py" in capfd.readouterr().err


@pytest.mark.parametrize(("columns_given", "widest"), [(None, 130), ("60", 60)])
def test_a_piped_table_is_as_wide_as_its_content(capsys, monkeypatch, columns_given, widest):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns_given:
        monkeypatch.setenv("COLUMNS", columns_given)
    wide = Table(columns=columns("short", "long"), rows=(("a", "x" * 120),))
    Shell().show(Section(title="t", parts=(wide, Text(text="word " * 100))), None)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= widest
    assert not any(line.endswith(" ") for line in lines)
    assert any("x" * min(120, widest - 15) in line for line in lines)


def test_a_missing_compiler_is_found_before_the_users_code_runs(train, monkeypatch, capfd):
    monkeypatch.chdir(train.parent)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # libtpu is not installed
    assert exit_code("plan", "train.py:make_broken", "--budget", "1GiB", "--target", "v5e") == 2
    said = capfd.readouterr().err
    assert said.startswith("MissingPackageError")
    assert "tpu-targets" in said


def test_the_shell_offers_completion():
    assert {"--install-completion", "--show-completion"} <= {
        name for each in typer.main.get_command(app).params for name in each.opts
    }
