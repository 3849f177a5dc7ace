"""Recipes: every script runs at a small size, fits its budget and trains as without a plan; pages show the scripts."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.recipes import FOLDER, ROOT, filled, missing_packages, recipes, script_of
from jaxckpt._units import budget_bytes

SMALL = {
    "linen_train_state": 'LAYERS, ROWS, WIDTH, BUDGET = 1, 8192, 64, "26MiB"',
    "nnx_step": 'LAYERS, ROWS, WIDTH, BUDGET = 1, 8192, 64, "26MiB"',
    "equinox_step": 'LAYERS, ROWS, WIDTH, BUDGET = 1, 8192, 64, "26MiB"',
    "accumulation": 'LAYERS, ROWS, WIDTH, BUDGET = 1, 8192, 64, "28MiB"',
    "lora": 'LAYERS, ROWS, WIDTH, BUDGET = 1, 8192, 64, "17MiB"',
    "haiku_step": 'LAYERS, ROWS, WIDTH, BUDGET = 1, 8192, 64, "26MiB"',
    "keras_step": 'LAYERS, ROWS, WIDTH, BUDGET = 1, 8192, 64, "26MiB"',
    "mesh": 'LAYERS, ROWS, WIDTH, BUDGET = 2, 16384, 64, "14MiB"',
    "processes": 'LAYERS, ROWS, WIDTH, BUDGET = 3, 4096, 64, "4MiB"',
    "frontier": 'LAYERS, ROWS, WIDTH, BUDGET = 4, 2048, 512, "60MiB"',
    "resuming": 'LAYERS, ROWS, WIDTH, BUDGET = 3, 4096, 64, "8MiB"',
    "plan_in_ci": 'LAYERS, ROWS, WIDTH, BUDGET = 3, 8192, 256, "36MiB"',
}
"""The line with the sizes, in the tests; a recipe that is not here runs as it is."""
MOST_LINES = 60
_SIZES = re.compile(r"^LAYERS, .*$", re.MULTILINE)
_FLAGS = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ["XLA_FLAGS"])
"""Those of all tests, but for the number of devices, which recipes set by themselves."""
_AMOUNT = r"([\d.]+ (?:[KMG]iB|B))"


def small_script(name: str) -> str:
    text = script_of(name)
    if name not in SMALL:
        return text
    text, count = _SIZES.subn(SMALL[name], text)
    assert count == 1
    return text


def python(folder, *words, **variables):
    made = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": _FLAGS, "PYTHONPATH": str(ROOT), "CI": "", **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return made.returncode, made.stdout + made.stderr


def run(name: str, folder) -> str:
    """Output of a recipe at a small size; the recipe is skipped where its library is missing."""
    if missing := missing_packages(name):
        pytest.skip(f"{', '.join(missing)} is not installed")
    (folder / f"{name}.py").write_text(small_script(name))
    code, output = python(folder, f"{name}.py")
    assert code == 0, output
    return output


def totals(output: str) -> list[tuple[int, int]]:
    """Compiled total and budget of every plan that a recipe printed."""
    found = re.findall(rf"{_AMOUNT} compiled of {_AMOUNT}", output)
    return [(budget_bytes(total), budget_bytes(budget)) for total, budget in found]


def losses(output: str) -> list[list[float]]:
    return [[float(word) for word in found.split(",")] for found in re.findall(r"\[([\d.e, +-]+)\]", output)]


TRAINING = ["linen_train_state", "nnx_step", "equinox_step", "accumulation", "lora", "mesh"]
SLOW = ["haiku_step", "keras_step", "hugging_face", "maxtext_step"]


@pytest.mark.parametrize("name", [*TRAINING, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_training_recipe_fits_and_trains_as_without_a_plan(name, tmp_path):
    output = run(name, tmp_path)
    ((total_bytes, limit_bytes),) = totals(output)
    as_written = budget_bytes(re.search(rf"as written: {_AMOUNT}", output)[1])
    assert total_bytes <= limit_bytes < as_written
    without, planned = losses(output)
    assert len(without) >= 3
    assert len(set(without)) == len(without)  # it trains
    np.testing.assert_allclose(planned, without, rtol=2e-5)


def test_two_processes_carry_out_one_plan(tmp_path):
    output = run("processes", tmp_path)
    plans = re.findall(r"process (\d): (.*)", output)
    assert sorted(process for process, _ in plans) == ["0", "1"]
    assert len({summary for _, summary in plans}) == 1
    assert all(total <= limit for total, limit in totals(output))
    first, *others = losses(output)
    assert len(others) == 3
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-5)


def test_ci_recipe_passes_and_fails_where_the_step_changed(tmp_path):
    output = run("plan_in_ci", tmp_path)
    assert all(total <= limit for total, limit in totals(output))
    code, said = python(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "plan_in_ci.py")
    assert code == 0, said
    script = tmp_path / "plan_in_ci.py"
    script.write_text(script.read_text().replace("x = jnp.tanh(x @ weights)", "x = jnp.tanh(x @ weights) * jnp.sin(x)"))
    code, said = python(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "plan_in_ci.py", CI="1")
    assert code == 1
    assert "FAILED plan_in_ci.py::test_memory_as_written" in said
    assert "PlanMismatchError" in said


def test_post_mortem_names_the_request_and_finds_a_plan(tmp_path):
    output = run("out_of_memory", tmp_path)
    assert re.search(r"requested\s+[\d.,]+ [GT]iB", output)
    ((total_bytes, limit_bytes),) = totals(output)
    assert total_bytes <= limit_bytes == budget_bytes("100GiB")


def test_frontier_rises_and_its_plan_fits(tmp_path):
    output = run("frontier", tmp_path)
    points = [(float(mib), float(ms)) for mib, ms in re.findall(r"([\d.]+) MiB, estimated ([\d.]+) ms", output)]
    assert len(points) >= 2
    assert points == sorted(points)
    assert [ms for _, ms in points] == sorted((ms for _, ms in points), reverse=True)
    ((total_bytes, _),) = totals(output)
    assert total_bytes <= budget_bytes("60MiB")
    assert "<html" in (tmp_path / "memory.html").read_text()


def test_resumed_job_reads_the_plan_and_goes_on(tmp_path):
    output = run("resuming", tmp_path)
    first, resumed, without = losses(output)
    np.testing.assert_allclose(first + resumed, without, rtol=1e-5)
    assert len(set(totals(output))) == 1
    assert output.count("makes a new plan") <= 1


@pytest.mark.parametrize("name", recipes())
def test_page_shows_the_script_and_what_it_printed(name):
    page = (FOLDER / f"{name}.md").read_text()
    assert page == filled(page, name), f"run: python -m benchmarks.recipes {name}"
    assert len(script_of(name).splitlines()) < MOST_LINES
    for heading in ("## The script", "## What it printed", "## For your own model", "## Limits"):
        assert heading in page


def test_every_page_has_a_script_and_the_index_has_every_page():
    pages = {page.stem for page in FOLDER.glob("*.md")} - {"index"}
    assert pages == set(recipes())
    linked = re.findall(r"\]\((\w+)\.md\)", (FOLDER / "index.md").read_text())
    assert sorted(linked) == recipes()
