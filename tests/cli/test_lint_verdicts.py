"""`jaxckpt lint` and `jaxckpt verdicts`: what they print, and how they fail."""

import json

import pytest
from typer.testing import CliRunner

from jaxckpt import PolicyError, StepReferenceError
from jaxckpt.cli.app import app
from jaxckpt.cli.console import EXIT_REFUSED
from tests.cli.test_cli import TRAIN

NAMED = """
from jax.ad_checkpoint import checkpoint_name

def named(ws, x):
    def loss(ws):
        h = x
        for w in ws:
            h = jnp.tanh(checkpoint_name(h @ w, "product"))
        return (h**2).mean()
    return jax.grad(loss)(ws)

def make_named():
    return named, make_step()[1]
"""


@pytest.fixture
def train(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(TRAIN + NAMED)
    return path


@pytest.fixture
def wrong(tmp_path):
    path = tmp_path / "wrong.toml"
    path.write_text('default = "recompute"\n[[rule]]\nname = "prodct"\ndecision = "save"\n')
    return path


def shell(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def test_a_step_with_nothing_wrong_passes(train):
    shown = shell("lint", f"{train}:make_named", "--policy", "nothing")
    assert shown.exit_code == 0, shown.output
    assert 'named under "nothing": nothing found' in shown.output


def test_a_rule_without_effect_fails_and_is_shown(train, wrong):
    shown = shell("lint", f"{train}:make_named", "--policy", wrong)
    assert shown.exit_code == EXIT_REFUSED
    assert "unmatched-rule" in shown.output


def test_findings_as_json(train, wrong):
    shown = shell("lint", f"{train}:make_named", "--policy", wrong, "--target", "h200", "--json")
    assert shown.exit_code == EXIT_REFUSED
    data = json.loads(shown.stdout)
    assert not data["ok"]
    assert data["findings"][0]["code"] == "unmatched-rule"
    assert data["findings"][0]["is_error"]


def test_verdicts_on_names(train):
    shown = shell("verdicts", f"{train}:make_named", "--target", "cpu")
    assert shown.exit_code == 0, shown.output
    assert 'named under "all names saved"' in shown.output
    assert "product" in shown.output


def test_verdicts_on_rules_as_json(train, wrong):
    shown = shell("verdicts", f"{train}:make_named", "--target", "cpu", "--policy", wrong, "--json")
    data = json.loads(shown.stdout)
    assert data["verdicts"][0]["word"] == "no effect"
    assert data["verdicts"][0]["why"].startswith("never attached")


@pytest.mark.parametrize("verb", ["lint", "verdicts"])
def test_mistakes_are_said_with_what_is_there(verb, train):
    assert isinstance(shell(verb, f"{train}:make_stp").exception, StepReferenceError)
    assert isinstance(shell(verb, f"{train}:make_named", "--policy", "dotz").exception, PolicyError)
