"""`import jaxckpt` is light: it loads nothing that it does not need yet, starts nothing and writes nothing."""

import ast
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import jaxckpt

LIGHT = """
import os, sys

written = []

def watch(event, args):
    if event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        written.append(args[0])
    elif event in ("os.mkdir", "os.rename", "os.link", "os.symlink"):
        written.append((event, *args))

sys.addaudithook(watch)
import jaxckpt

assert not written, written
unneeded = {"flax", "optax", "scipy", "matplotlib", "IPython", "rich", "typer", "tomlkit"}
assert not unneeded & set(sys.modules), unneeded & set(sys.modules)
"""

NOT_STARTED = """
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
"""

COMPLETE = """
assert set(jaxckpt.__all__) <= set(dir(jaxckpt))
for name in jaxckpt.__all__:
    getattr(jaxckpt, name)
"""


def run(code, home):
    """Runs code in a Python of its own whose home, working and temporary folders are one empty folder."""
    places = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), str(home))
    # Python's own bytecode is not ours; the path lets it find a checkout that is not installed.
    path = os.pathsep.join(sys.path)
    environment = os.environ | places | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=home, env=environment, capture_output=True, text=True, check=False
    )


def test_importing_is_light_starts_nothing_and_writes_no_file(tmp_path):
    done = run(LIGHT + NOT_STARTED, tmp_path)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())


def test_every_public_name_is_there_and_starts_nothing(tmp_path):
    done = run("import jaxckpt" + COMPLETE + NOT_STARTED, tmp_path)
    assert done.returncode == 0, done.stderr


def test_type_checkers_see_the_public_names():
    tree = ast.parse(Path(jaxckpt.__file__).with_suffix(".pyi").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    # A stub exports a name that is imported as itself, and no other.
    seen = {each.name for node in imports for each in node.names if each.name == each.asname}
    assert seen == {*jaxckpt.__all__, "dynamic", "testing"}
    assert len(imports) == len(tree.body) - 1, "only imports follow the docstring"


@pytest.mark.parametrize("room", sorted({*jaxckpt._HOMES.values()} - {"jaxckpt"}))
def test_no_public_name_is_that_of_a_module_beside_it(room):
    folder = Path(jaxckpt.__file__).parent.joinpath(*room.split(".")[1:])
    modules = {path.stem for path in folder.iterdir()} if folder.is_dir() else set()
    # mypy takes a function for the module of its name where both are in one package.
    assert not modules & {name for name, home in jaxckpt._HOMES.items() if home == room}


@pytest.mark.parametrize("room", ["dynamic", "testing"])
def test_no_name_of_a_public_room_is_that_of_a_module_beside_it(room):
    modules = {path.stem for path in (Path(jaxckpt.__file__).parent / room).iterdir()}
    assert not modules & set(import_module(f"jaxckpt.{room}").__all__)


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'plann'"):
        _ = jaxckpt.plann


@pytest.mark.parametrize("name", ["compare", "compare_evictors"])
def test_the_former_room_still_gives_its_names_and_warns(name):
    with pytest.warns(
        DeprecationWarning, match=rf"jaxckpt\.versus\.{name} is jaxckpt\.(comparison|dynamic)\.{name} now"
    ):
        former = getattr(import_module("jaxckpt.versus"), name)
    assert former in (getattr(jaxckpt.comparison, name, None), getattr(jaxckpt.dynamic, name, None))
