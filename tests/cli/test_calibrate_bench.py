"""`jaxckpt calibrate` and `jaxckpt bench --attached`, as typed."""

import json

import pytest
from typer.testing import CliRunner

from benchmarks.attached import __main__ as attached
from jaxckpt import MissingPackageError
from jaxckpt.cli import devices as verbs
from jaxckpt.cli.app import app
from jaxckpt.machine import load_calibration


def typed(*words):
    return CliRunner().invoke(app, [*words])


def test_a_calibration_is_printed_and_kept(tmp_path):
    path = tmp_path / "mine.toml"
    made = typed("calibrate", "--seconds", "1", "-o", str(path))
    assert made.exit_code == 0, made.output
    assert "launch" in made.output and "figures mean nothing" in made.output
    assert load_calibration(path).smoke


def test_a_calibration_is_one_json_object():
    made = typed("calibrate", "--seconds", "1", "--json")
    assert json.loads(made.stdout)["platform"] == "cpu"


def test_words_of_the_verb_are_those_of_the_benchmark(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(attached, "main", seen.append)
    assert typed("bench", "--attached", "--small", "--model", "gcn", "--out", str(tmp_path)).exit_code == 0
    assert seen == [["--seconds", "540.0", "--out", str(tmp_path), "--models", "gcn", "--small"]]
    options = attached.options_from(seen[0], device=True, scratch=tmp_path)
    assert options.models == ("gcn",) and options.small and options.out == tmp_path


def test_bench_wants_to_be_told_of_what():
    assert typed("bench").exit_code == 2


def test_without_a_checkout_it_is_said_what_is_missing(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(verbs, "import_module", missing)
    with pytest.raises(MissingPackageError, match="source checkout"):
        verbs.benchmarks()
