"""`jaxckpt pareto` and `jaxckpt max-batch`."""

import json
from pathlib import Path

import pytest

from jaxckpt._errors import StepReferenceError
from jaxckpt.cli.reference import load_maker
from jaxckpt.planner import load_plan
from tests.cli.test_cli import exit_code, shell, train  # noqa: F401  a fixture
from tests.planner.test_planner import needs_compiler

pytestmark = pytest.mark.usefixtures("no_local_search")

MAKER = """

def make_few():
    step, (ws, x) = make_step()
    return step, (ws[:4], x)

def make_batch(batch):
    ws, _ = make_few()[1]
    return step, (ws, jax.ShapeDtypeStruct((batch, 64), jnp.float32))

def make_of_two(batch, length):
    return make_batch(batch)
"""


@pytest.fixture
def maker(train) -> Path:  # noqa: F811
    train.write_text(train.read_text() + MAKER)
    return train


@needs_compiler
def test_pareto_prints_a_table_and_writes_a_page(maker, tmp_path):
    page = tmp_path / "frontier.html"
    shown = shell("pareto", f"{maker}:make_few", "--points", "3", "--html", str(page))
    assert shown.exit_code == 0, shown.output
    assert "Memory against time: step on h200" in shown.output
    assert "<canvas" in page.read_text()


@needs_compiler
def test_pareto_as_json_is_monotone(maker):
    shown = shell("pareto", f"{maker}:make_few", "--points", "3", "--json")
    data = json.loads(shown.stdout)
    totals = [point["total_bytes"] for point in data["points"]]
    assert totals == sorted(totals) and len(totals) >= 2
    assert data["points"][-1]["plan"]["footprint"]["temp_bytes"] > 0


@needs_compiler
def test_max_batch_writes_the_plan_of_the_largest(maker, tmp_path):
    path = tmp_path / "largest.toml"
    words = (
        "max-batch",
        f"{maker}:make_batch",
        "--budget",
        "8MiB",
        "--multiples-of",
        "1024",
        "-o",
        str(path),
        "--json",
    )
    shown = shell(*words)
    assert shown.exit_code == 0, shown.output
    data = json.loads(shown.stdout)
    assert data["largest"]["batch"] % 1024 == 0
    assert data["largest"]["plan"]["total_bytes"] <= 8 * 2**20
    assert load_plan(path).footprint.total_bytes == data["largest"]["plan"]["total_bytes"]


def test_a_maker_is_a_function_of_the_batch_alone(maker):
    assert callable(load_maker(f"{maker}:make_batch"))
    for name, said in (("make_of_two", "it takes batch, length"), ("make_step", "it takes nothing")):
        with pytest.raises(StepReferenceError, match=said):
            load_maker(f"{maker}:{name}")


def test_mistakes_are_said_before_anything_is_compiled(maker):
    assert exit_code("max-batch", f"{maker}:make_batch", "--budget", "6 apples") == 2
    assert exit_code("max-batch", f"{maker}:make_batch", "-o", "nowhere/plan.toml") == 2
    assert exit_code("pareto", f"{maker}:make_step", "--html", "nowhere/page.html") == 2
