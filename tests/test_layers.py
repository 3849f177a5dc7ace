"""The house: imports point one way, the pure rooms never see jax, one module touches jax's internals."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "jaxckpt"
ORDER = (
    {"_errors", "_progress", "_shown", "_version"},  # `_shown` lets data ask for its report by name alone
    {"_units", "_files", "_records", "_step", "random_streams"},
    {"_compat"},
    {"_compilers"},
    {"ir"},  # data
    {"schedule"},
    {"cost", "policy"},
    {"solve", "hlo"},
    {"oom", "machine"},
    {"program"},  # jaxprs inlined
    {"outline"},  # and outlined again
    {"calling"},  # steps as users write them become functions of arrays
    {"trace"},
    {"rows"},
    {"annotate"},  # scopes trace what stands in them
    {"rewrite"},
    {"linter", "verifier", "compiler"},
    {"calibration"},
    {"planner"},
    {"comparison"},
    {"report"},
    {"testing"},  # its messages show the tables of reports
    {"dynamic"},  # a wing of its own: nothing in planning imports it
    {"cli"},
    {"__init__", "__main__", "versus"},
)
"""A room imports only from the rows before its own, and never from its row."""

RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}
PURE = {
    *("ir", "schedule", "policy", "cost", "solve", "hlo", "oom"),
    *("_errors", "_files", "_records", "_shown", "_units", "_version"),
}
SHARED = {
    *("_errors", "_files", "_progress", "_records", "_shown", "_step", "_units", "_version"),
    *("_compat", "_compilers"),
}
MAY_USE_INTERNALS = {
    *("_compilers", "annotate", "calling", "compiler", "linter", "machine", "outline"),
    *("planner", "program", "rewrite", "trace", "verifier"),
}
NARROW = {"machine": {"cost", "_errors", "_files", "_records", "_units", "_compat", "_compilers"}}
"""Rooms that may import less than their row allows."""
DOORS = {
    ("policy/policy.py", "jaxckpt.planner.explain"),
    ("policy/policy.py", "jaxckpt.annotate.as_jax"),
    ("policy/readers/reading.py", "jaxckpt.planner.Planner"),
    ("policy/readers/reading.py", "jaxckpt.solve.solve"),
    ("solve/baselines/__init__.py", "jaxckpt.dynamic.strategies"),
}
"""Imports inside functions that open a later room when they are called. Users look for `explain` and `as_jax` on the
policy, for the budget of thresholds on what was read, and name the evictors of `dynamic` as strategies like any
other."""


FILES = sorted(ROOT.rglob("*.py"))


def room_of(path: Path, root: Path = ROOT) -> str:
    return path.relative_to(root).parts[0].removesuffix(".py")


def imported(path: Path, root: Path = ROOT) -> Iterator[str]:
    """Dotted names of all that a file imports, wherever in it, relative ones resolved."""
    package = ("jaxckpt", *path.relative_to(root).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                above = package[: len(package) - node.level + 1] if node.level else ()
                base = ".".join((*above, *([node.module] if node.module else [])))
                yield from (f"{base}.{alias.name}" for alias in node.names)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name


def violations(path: Path, root: Path = ROOT) -> Iterator[str]:
    room = room_of(path, root)
    if room != "_compat" and "jax._src" in path.read_text():
        yield f"{room} mentions jax._src"
    for name in sorted(set(imported(path, root))):
        head, *rest = name.split(".")
        if head in ("jax", "jaxlib", "flax") and room in PURE:
            yield f"{room} imports {name}"
        if head != "jaxckpt":
            continue
        # `import jaxckpt` and `from jaxckpt import plan` go through the front door, which opens on every room.
        other = rest[0] if rest and rest[0] in RANK else "__init__"
        if other == room or (path.relative_to(root).as_posix(), name) in DOORS:
            continue
        if RANK[other] >= RANK[room]:
            yield f"{room} imports {name}, which is not before it"
        elif other not in NARROW.get(room, RANK):
            yield f"{room} imports {name}, which is none of {sorted(NARROW[room])}"
        if other == "_compat" and room not in MAY_USE_INTERNALS:
            yield f"{room} imports {name}"
        if other not in SHARED and any(part.startswith("_") for part in rest[1:]):
            yield f"{room} imports the private {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path):
    assert room_of(path) in RANK, "a new room needs its place in ORDER"
    assert not list(violations(path))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_open_with_a_sentence(path):
    text = path.read_text()
    first, *_ = (ast.get_docstring(ast.parse(text)) or "").splitlines() or [""]
    assert first.endswith("."), f"opens with {first!r}"


def test_carrying_out_a_plan_loads_no_solver_policy_or_lint():
    code = "import sys, jaxckpt.rewrite.apply; print(*(m for m in sys.modules if m.startswith('jaxckpt.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    rooms = {room for module in done.stdout.split() if (room := module.split(".")[1])[0] != "_"}
    assert rooms == {"ir", "schedule", "cost", "program", "outline", "calling", "trace", "rewrite"}


def test_a_page_lists_the_rooms_in_their_order():
    page = ROOT.parent / "docs" / "how-it-works.md"
    told = re.findall(r"^\| `jaxckpt/(\w+)` \|", page.read_text(), flags=re.MULTILINE)
    rooms = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    assert set(told) == rooms
    assert [RANK[room] for room in told] == sorted(RANK[room] for room in told)


@pytest.mark.parametrize(
    ("file", "line", "seen"),
    [
        ("solve/bad.py", "import jax", "solve imports jax"),
        ("ir/bad.py", "import_module('flax.nnx')", "ir imports flax.nnx"),
        ("_units.py", "def f():\n    import jax.numpy as jnp", "_units imports jax.numpy"),
        ("solve/bad.py", "from jaxckpt.planner import plan", "jaxckpt.planner.plan, which is not before it"),
        ("ir/bad.py", "def f():\n    from ..solve import solve", "jaxckpt.solve.solve, which is not before it"),
        ("policy/bad.py", "from jaxckpt import cost", "jaxckpt.cost, which is not before it"),
        (
            "trace/deep/bad.py",
            "from ...compiler import Footprint",
            "jaxckpt.compiler.Footprint, which is not before it",
        ),
        ("ir/bad.py", "import jaxckpt", "jaxckpt, which is not before it"),
        ("solve/bad.py", "from jaxckpt import plan", "jaxckpt.plan, which is not before it"),
        ("machine/bad.py", "from jaxckpt.ir import Graph", "jaxckpt.ir.Graph, which is none of"),
        ("report/bad.py", "from jaxckpt import _compat", "report imports jaxckpt._compat"),
        ("planner/bad.py", "from jaxckpt.trace._deep import x", "private jaxckpt.trace._deep.x"),
        ("planner/bad.py", "NAME = 'jax._src.core'", "planner mentions jax._src"),
    ],
)
def test_what_may_not_be_imported_would_be_seen(tmp_path, file, line, seen):
    bad = tmp_path / file
    bad.parent.mkdir(parents=True, exist_ok=True)
    bad.write_text(f'"""Bad."""\n{line}\n')
    assert any(seen in violation for violation in violations(bad, tmp_path))


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("solve/good.py", "from jaxckpt import _units, ir"),
        ("solve/good.py", "from .problem import _deep"),
        ("machine/good.py", "import jax\nfrom jaxckpt import _compat\nfrom ..cost import Rates"),
        ("_compat.py", "from jax._src import xla_bridge"),
        ("__init__.py", "from jaxckpt.planner import plan"),
    ],
)
def test_what_may_be_imported_is_left_alone(tmp_path, file, line):
    good = tmp_path / file
    good.parent.mkdir(parents=True, exist_ok=True)
    good.write_text(f'"""Good."""\n{line}\n')
    assert not list(violations(good, tmp_path))


def reading_order(path: Path) -> set[str]:
    """Modules that the first docstring of a file tells to read before or after it."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    told = re.findall(r"Read after ([^;.]*(?:\.[a-z][^;.]*)*)[;.]", text)
    return {name for each in told for name in re.findall(r"`([a-z_.]+)`", each)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_read_after_modules_that_exist(path):
    for name in reading_order(path):
        place = ROOT / name.removeprefix("jaxckpt.").replace(".", "/")
        known = (path.parent / f"{name}.py", path.parent / name, place, place.with_suffix(".py"))
        assert any(each.exists() for each in known), name
