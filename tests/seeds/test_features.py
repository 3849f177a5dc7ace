"""The table of other systems' features is true: every test that it names exists, and no row is without an answer."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from benchmarks.tables import FEATURES, SEEDS, features_table, filled

ROOT = Path(__file__).parents[2]
ROWS = tomllib.loads(FEATURES.read_text())["feature"]


@cache
def names_in(file: str) -> frozenset[str]:
    """What is defined at the top of a file, without running it."""
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['system']}: {row['feature']}")
def test_a_feature_has_tests_that_exist_or_a_reason(row):
    assert row.keys() <= {"system", "feature", "shows", "tests", "reason"}
    assert row["tests"] or row.get("reason")
    assert bool(row["tests"]) == bool(row["shows"])
    assert len(set(row["tests"])) == len(row["tests"])
    for test in row["tests"]:
        file, _, name = test.partition("::")
        assert name.startswith("test_") and name in names_in(file), f"{test} is not there"


def test_no_feature_stands_twice_and_systems_are_in_one_piece():
    assert len({(row["system"], row["feature"]) for row in ROWS}) == len(ROWS)
    systems = [row["system"] for row in ROWS]
    assert sorted(systems, key=systems.index) == systems
    assert {"OneFlow", "DeepSpeed", "MindSpore"} <= set(systems)


def test_cells_of_the_table_break_no_row():
    assert not any("|" in text or "\n" in text for row in ROWS for text in (row["feature"], row["shows"]))


def test_the_page_is_current():
    text = SEEDS.read_text()
    assert filled(text, {"features": features_table()}) == text, "run: python -m benchmarks.tables"


def test_files_and_tests_that_the_page_links_exist():
    links = re.findall(r"\]\(\.\./([^)]+)\)", SEEDS.read_text())
    assert links
    assert all((ROOT / link).is_file() for link in links)


def test_the_example_of_the_page_runs(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", SEEDS.read_text(), flags=re.DOTALL)
    exec(compile(example, str(SEEDS), "exec"), {"__name__": "example"})  # the page is ours
    assert int(capsys.readouterr().out) > 0
