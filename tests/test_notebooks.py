"""Notebooks run without a warning, each cell of code asserts what it shows, and what is kept is what they give."""

import ast
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from packaging.version import Version

from benchmarks.notebooks import REPOSITORY, badge, execute, made_with, notebooks, read

NOTEBOOKS = {path.stem: path for path in notebooks()}
QUICK = {"00_from_scratch"}
"""What runs with every run of the tests; the others take minutes together, and `make slow` runs them."""
MOST_WORDS, MOST_LINES, MOST_BYTES = 1200, 300, 600_000
"""Of prose and of code, ten minutes of a reader; and what a code host still shows: Chart.js is 210,000 of the bytes."""


def texts(notebook) -> list[list[str]]:
    """What each cell printed or returned, as text."""
    return [
        [
            output.text if output.output_type == "stream" else output.data.get("text/plain", "")
            for output in cell.get("outputs", ())
        ]
        for cell in notebook.cells
    ]


def asserts(source: str) -> bool:
    return any(
        isinstance(node, ast.Assert) or (isinstance(node, ast.Attribute) and node.attr.startswith("assert_"))
        for node in ast.walk(ast.parse(source))
    )


def notebook_of(*sources: str):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])


def is_older() -> bool:
    """Whether the notebooks were made with a newer jax than this one."""
    kept = (read(path).metadata["made_with"]["jax"] for path in NOTEBOOKS.values())
    return Version(made_with()["jax"]) < max(map(Version, kept))


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_runs_with_any_jax(name):
    assert execute(read(NOTEBOOKS[name])).cells


@pytest.mark.skipif(is_older(), reason="they are run with the jax that they were made with, and newer ones")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in NOTEBOOKS]
)
def test_notebook_runs_and_gives_what_is_kept_in_it(name):
    kept = read(NOTEBOOKS[name])
    given = execute(kept)
    streams = [o for cell in given.cells for o in cell.get("outputs", ()) if o.get("name") == "stderr"]
    assert not streams
    if kept.metadata.get("made_with") == made_with():  # figures of another compiler are its own
        assert texts(given) == texts(kept), f"run: python -m benchmarks.notebooks {name}"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_cell_of_code_asserts_and_has_run_in_order(name):
    cells = [cell for cell in read(NOTEBOOKS[name]).cells if cell.cell_type == "code"]
    assert cells
    assert not [cell.source for cell in cells if not asserts(cell.source)]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_is_read_in_ten_minutes(name):
    cells = read(NOTEBOOKS[name]).cells
    prose = [cell.source for cell in cells if cell.cell_type == "markdown"]
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    assert sum(len(source.split()) for source in prose) <= MOST_WORDS
    assert sum(bool(line.strip()) for source in code for line in source.splitlines()) <= MOST_LINES
    assert NOTEBOOKS[name].stat().st_size <= MOST_BYTES


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_begins_with_its_own_badge(name):
    first = read(NOTEBOOKS[name]).cells[0]
    owner = REPOSITORY.removeprefix("https://github.com/")
    address = f"https://colab.research.google.com/github/{owner}/blob/main/notebooks/{name}.ipynb"
    assert first.cell_type == "markdown" and first.source.startswith("# ")
    assert re.findall(r"\]\((https://colab\.research\.google\.com/github/[^)]*)\)", first.source) == [address]
    assert first.source.endswith(badge(NOTEBOOKS[name]))


def test_notebook_runs_in_this_interpreter_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = execute(notebook_of("import sys; open('left', 'w').close(); print(sys.prefix)", "import jaxckpt"))
    assert Path(given.cells[0].outputs[0].text.strip()).samefile(sys.prefix)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("source", ["assert 1 == 2", "import warnings; warnings.warn('not said aloud')"])
def test_failing_and_warning_cells_fail(source):
    with pytest.raises(CellExecutionError):
        execute(notebook_of(source))
