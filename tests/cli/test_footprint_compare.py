"""The shell's `footprint` and `compare`."""

import csv
import json

import pytest

from jaxckpt import load_footprint
from tests.cli.test_cli import exit_code, needs_compiler, shell, train
from tests.memory_maps import made_footprint, memory_map

__all__ = ["train"]


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """Two saved footprints, in the folder that the shell runs in."""
    monkeypatch.chdir(tmp_path)
    made_footprint(memory_map()).save(tmp_path / "none.json")
    made_footprint(memory_map(recomputed=2), step_s=0.003).save(tmp_path / "again.json.gz")
    return tmp_path


@needs_compiler
def test_footprint_prints_where_the_bytes_are_and_keeps_them(train, tmp_path):
    shown = shell("footprint", f"{train}:make_dict", "-o", str(tmp_path / "made.json.gz"), "--depth", "1")
    assert shown.exit_code == 0, shown.output
    assert "At the peak" in shown.stdout
    kept = load_footprint(tmp_path / "made.json.gz")
    assert kept.memory is not None
    compared = shell("compare", f"{train}:make_dict", str(tmp_path / "made.json.gz"), "--json")
    data = json.loads(compared.stdout)
    assert data["versions"][0]["total_bytes"] == data["versions"][1]["total_bytes"] == kept.total_bytes
    assert data["peaks"][0]["went"] == data["peaks"][0]["came"] == []


def test_footprint_as_json_is_one_object(train):
    data = json.loads(shell("footprint", f"{train}:make_step", "--target", "cpu", "--json").stdout)
    assert data["total_bytes"] > 0
    assert data["target"] == "cpu"


def test_a_saved_footprint_is_shown_and_drawn_again(saved):
    shown = shell("footprint", "none.json", "-o", "none.html", "-o", "copy.json")
    assert shown.exit_code == 0, shown.output
    assert "At the peak: 7 MiB of temporaries" in shown.stdout
    assert load_footprint("copy.json").memory == memory_map()
    assert "GPT" in (saved / "none.html").read_text()


def test_compare_draws_the_maps_of_all_versions(saved, capfd):
    shown = shell("compare", "before=none.json", "after=again.json.gz", "--maps", "both.html")
    assert shown.exit_code == 0, shown.output
    page = (saved / "both.html").read_text()
    assert '"name":"before"' in page and '"name":"after"' in page
    assert exit_code("compare", "no_such_module:make_step", "none.json", "--maps", "both.png") == 2
    assert "--maps both.html" in capfd.readouterr().err


@pytest.mark.parametrize("output", ["made.gif", "made", "no/made.html"])
def test_an_unwritable_file_is_refused_before_user_code_loads(train, output, capfd):
    assert exit_code("footprint", "no_such_module:make_step", "-o", output) == 2
    assert "ReportFileError" in capfd.readouterr().err


def test_compare_shows_saved_footprints_side_by_side(saved):
    shown = shell("compare", "none.json", "planned=again.json.gz")
    assert shown.exit_code == 0, shown.output
    assert "At the peak, from none.json to planned: -2 MiB" in shown.stdout


def test_compare_writes_a_page_and_figures(saved):
    shown = shell("compare", "none.json", "again.json.gz", "--html", "out.html", "--csv", "out.csv")
    assert shown.exit_code == 0, shown.output
    assert (saved / "out.html").read_text().startswith("<!DOCTYPE html>")
    with open(saved / "out.csv", newline="") as file:
        assert {row["table"] for row in csv.DictReader(file)} == {"total", "scope", "peak", "recomputed"}


def test_long_tables_are_printed_whole_when_asked(saved):
    short, whole = (shell("compare", "none.json", "again.json.gz", *more).stdout for more in ((), ("--all",)))
    assert len(whole) >= len(short)
    short, whole = (shell("footprint", "--help").stdout, shell("compare", "--help").stdout)
    assert "--all" in short
    assert "--all" in whole


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("none.json", "none.json"), "StepReferenceError"),
        (("none.json", "missing.json"), "FootprintFileError"),
        (("none.json", "nowhere.py:make_step"), "StepReferenceError"),
        (("none.json", "nonsense"), "HloError"),
        (("none.json", "--html", "no/out.html"), "ReportFileError"),
    ],
)
def test_what_cannot_be_compared_ends_in_advice_and_exit_code_2(saved, words, error, capfd):
    assert exit_code("compare", *words) == 2
    said = capfd.readouterr().err
    assert f"{error}: " in said
    assert "Try:" in said
