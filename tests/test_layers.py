"""The house: imports point one way, the pure rooms never see jax, one module touches jax's internals."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "jaxckpt"
ORDER = (
    {"_errors", "_version"},
    {"_units"},
    {"_compat"},
    {"ir"},
    {"policy", "cost"},
    {"solve", "dynamic"},
    {"trace", "target"},
    {"rewrite"},
    {"measure"},
    {"fit"},
    {"mark"},
    {"report"},
    {"cli"},
    {"__init__", "__main__"},
)
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}
PURE = {"ir", "policy", "cost", "solve", "dynamic", "_errors", "_units", "_version"}
SHARED = {"_errors", "_units", "_version", "_compat"}
MAY_USE_INTERNALS = {"trace", "rewrite", "target", "measure", "fit", "mark"}
MOST_LINES = 500

FILES = sorted(ROOT.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """Dotted names of all that a file imports, wherever in it, relative ones resolved."""
    package = ("jaxckpt", *path.relative_to(ROOT).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *([node.module] if node.module else [])))
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def violations(path: Path) -> Iterator[str]:
    room = room_of(path)
    for name in set(imported(path)):
        head, *rest = name.split(".")
        if head in ("jax", "jaxlib", "flax") and room in PURE:
            yield f"{room} imports {name}"
        if name.startswith("jax._src") and room != "_compat":
            yield f"{name} outside _compat"
        if head != "jaxckpt" or not rest or rest[0] not in RANK or rest[0] == room:
            continue
        if RANK[rest[0]] >= RANK[room]:
            yield f"{room} imports {name}, which is not before it"
        if rest[0] == "_compat" and room not in MAY_USE_INTERNALS:
            yield f"{room} imports {name}"
        if rest[0] not in SHARED and any(part.startswith("_") for part in rest[1:]):
            yield f"{room} imports the private {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path):
    assert room_of(path) in RANK, "a new room needs its place in ORDER"
    assert not list(violations(path))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_open_with_a_sentence_and_end_in_time(path):
    text = path.read_text()
    opening = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
    assert opening.rstrip().endswith((".", ":")), f"{path.name} opens without a sentence"
    assert text.count("\n") <= MOST_LINES


def test_an_upward_import_would_be_seen(tmp_path, monkeypatch):
    room = tmp_path / "solve"
    room.mkdir()
    bad = room / "bad.py"
    bad.write_text('"""Bad."""\nimport jax\nfrom jaxckpt.fit import plan\nfrom ..measure._deep import x\n')
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    seen = " ".join(violations(bad))
    assert "imports jax" in seen and "jaxckpt.fit" in seen and "private jaxckpt.measure._deep" in seen
