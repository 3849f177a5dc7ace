"""`jaxckpt verify`: what it prints for a policy and a plan, and how it fails."""

import json

import pytest
from typer.testing import CliRunner

import jaxckpt
from jaxckpt import PolicyError, StepReferenceError, VerificationError
from jaxckpt.cli.app import app
from jaxckpt.cli.reference import load_step
from jaxckpt.planner import Planner
from tests.cli.test_cli import TRAIN


@pytest.fixture
def train(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(TRAIN.replace("(4096, 64)", "(16, 64)"))
    return path


def shell(*words):
    return CliRunner().invoke(app, ["verify", *map(str, words)])


def test_a_policy_is_verified_and_a_row_shown_for_each_result(train):
    shown = shell(f"{train}:make_step", "--policy", "nothing")
    assert shown.exit_code == 0, shown.output
    assert "step: the planned step computes the same" in shown.output
    assert "[7]" in shown.output
    assert "9 described arguments were generated" in shown.output


def test_exactly_and_as_json(train):
    shown = shell(f"{train}:make_dict", "--policy", "dots", "--exact", "--json")
    data = json.loads(shown.stdout)
    assert data["ok"]
    assert data["bit_equal"]
    assert len(data["leaves"]) == 8
    assert data["leaves"][0]["differing"] == 0


def test_a_plan_of_a_file_is_verified(train, tmp_path):
    step = load_step(f"{train}:make_step")
    Planner(step, target="cpu").plan(budget="1GiB", strategy="full").save(tmp_path / "plan.toml")
    shown = shell(f"{train}:make_step", "--plan", tmp_path / "plan.toml", "--exact")
    assert shown.exit_code == 0, shown.output
    assert "bit for bit" in shown.output


def test_what_differs_is_shown_and_refused(train, monkeypatch):
    def twice(step, policy, **_):
        return lambda *args: [2 * gradient for gradient in step(*args)]

    monkeypatch.setattr("jaxckpt.planner.apply", twice)
    shown = shell(f"{train}:make_step", "--policy", "nothing")
    assert isinstance(shown.exception, VerificationError)
    assert "8 of 8 results are wrong" in shown.output
    assert "WRONG" in shown.output


@pytest.mark.parametrize("words", [(), ("--policy", "nothing", "--plan", "plan.toml")])
def test_one_of_policy_and_plan_is_needed(train, words):
    shown = shell(f"{train}:make_step", *words)
    assert isinstance(shown.exception, PolicyError)
    assert "either --policy or --plan" in str(shown.exception)


def test_mistakes_are_said_with_what_is_there(train):
    assert isinstance(shell(f"{train}:make_stp", "--policy", "nothing").exception, StepReferenceError)
    missing = shell(f"{train}:make_step", "--policy", "nothin").exception
    assert isinstance(missing, PolicyError)
    assert all(name in missing.needed for name in jaxckpt.policies())
