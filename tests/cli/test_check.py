"""`jaxckpt plan --check`: a plan held against the step that is there now."""

import json
import re
import sys
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from jaxckpt._units import format_seconds
from jaxckpt.cli.app import app
from jaxckpt.planner import load_plan
from tests.cli.test_cli import TRAIN
from tests.planner.test_planner import needs_compiler

pytestmark = needs_compiler
DOCS = Path(__file__).parents[2] / "docs"


def shell(*words: str):
    return CliRunner().invoke(app, ["plan", "train.py:make_dict", *words])


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """The text of a plan within 8.5 MiB."""
    folder = tmp_path_factory.mktemp("planned")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        (folder / "train.py").write_text(TRAIN)
        shown = shell("--budget", "8.5MiB", "-o", "plan.toml")
    assert shown.exit_code == 0, shown.output
    return (folder / "plan.toml").read_text()


@pytest.fixture
def place(planned, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "plan.toml").write_text(planned)
    return tmp_path


def test_progress_says_which_attempt_what_is_wanted_and_what_came(place):
    said = shell("--budget", "6MiB").stderr
    assert re.search(r"attempt 1 of at most 8 \(\S+: [\d.]+ MiB predicted for a budget of 6 MiB\): compiling", said)
    assert re.search(r"attempt 2 of at most 8 \(.*, the last took [\d.]+ MiB\): compiling", said)


def test_a_plan_for_this_step_is_valid(place):
    shown = shell("--check", "plan.toml", "--json")
    assert shown.exit_code == 0, shown.output
    checked = json.loads(shown.stdout)
    assert (checked["ok"], checked["problems"], checked["changes"]) == (True, [], [])
    assert checked["total_bytes"] <= checked["budget_bytes"] == 8.5 * 2**20


def test_a_plan_for_other_shapes_is_not_valid_and_says_which(place):
    (place / "train.py").write_text(TRAIN.replace("4096", "2048"))
    shown = shell("--check", "plan.toml")
    assert shown.exit_code == 3
    assert "not valid" in shown.stdout
    assert "float32[2048,64]" in shown.stdout and "float32[4096,64]" in shown.stdout


def test_changed_decisions_that_fit_are_named_and_measured_anew(place):
    edit(place, "save", "recompute")
    shown = shell("--check", "plan.toml", "-o", "measured.toml")
    assert shown.exit_code == 0, shown.output
    assert "Changed by hand: tanh of /: recompute, was save." in shown.stdout
    assert load_plan(place / "measured.toml").footprint.total_bytes <= 8.5 * 2**20


def test_changed_decisions_that_do_not_fit_are_refused(place):
    edit(place, "recompute", "save")
    shown = shell("--check", "plan.toml")
    assert shown.exit_code == 3
    assert "above the budget of 8.5 MiB" in shown.stdout


def test_other_versions_are_named(place):
    path = place / "plan.toml"
    plan = load_plan(path)
    object.__setattr__(plan.footprint, "jax_version", "0.9.0")
    plan.save(path)
    shown = shell("--check", "plan.toml")
    assert shown.exit_code == 0
    assert "jax was 0.9.0, is " in shown.stdout


def edit(place, old, new):
    path = place / "plan.toml"
    text = path.read_text()
    assert f'decision = "{old}"' in text
    path.write_text(text.replace(f'decision = "{old}"', f'decision = "{new}"'))


def test_the_json_of_plans_is_as_its_schema_and_its_example_say(place):
    schema = json.loads((DOCS / "plan.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    (example,) = re.findall(r"```json\n(.*?)```", (DOCS / "shell.md").read_text(), flags=re.DOTALL)
    printed = shell("--budget", "8.5MiB", "--budget", "1MiB", "--json").stdout
    for text in (example, printed):
        data = json.loads(text)
        jsonschema.validate(data, schema)
        assert len(data["plans"]) == len(data["refused"]) == 1


def test_seconds_of_model_and_program_have_two_names(place):
    plan = load_plan("plan.toml")
    printed = {line.strip().rsplit("  ", 1)[0].strip(): line for line in str(plan).splitlines()}
    assert format_seconds(plan.estimated_step_s) in printed["estimated step, of the compiled program"]
    assert format_seconds(plan.predicted.step_s) in printed["predicted step, by the model"]
