"""The fixture as users have it: suites of theirs, run by pytest inside pytest."""

import importlib.metadata
import os
import sys
import tomllib
from pathlib import Path

import pytest

# Before any inner run: what one of them imports first is forgotten when it ends, and jax does not bear that.
import jaxckpt.testing.check
import jaxckpt.testing.plugin
from jaxckpt._compilers import compiler_for

pytest_plugins = ["pytester"]

ROOT = Path(jaxckpt.__file__).parents[1]
ENTRY_POINT = "jaxckpt.testing.plugin"
IS_INSTALLED = any(each.value == ENTRY_POINT for each in importlib.metadata.entry_points(group="pytest11"))
PLUGIN = () if IS_INSTALLED else ("-p", ENTRY_POINT)

SUITE = """
import pytest
from tests.testing.footprints import made

LAYER_MIB = {layer_mib}

def test_step(jaxckpt_snapshot):
    jaxckpt_snapshot(made(layer_mib=LAYER_MIB))
"""


class Suite:
    """A user's suite in an empty folder."""

    def __init__(self, pytester: pytest.Pytester):
        self.pytester = pytester

    def write(self, text: str = SUITE, **facts: int) -> "Suite":
        self.pytester.makepyfile(test_memory=text.replace("{layer_mib}", str(facts.get("layer_mib", 2))))
        return self

    def run(self, *options: str, alone: bool = False) -> pytest.RunResult:
        run = self.pytester.runpytest_subprocess if alone else self.pytester.runpytest_inprocess
        return run(*PLUGIN, "-p", "no:cacheprovider", *options)

    @property
    def snapshots(self) -> dict[str, dict]:
        """What was kept, by file name."""
        files = sorted((self.pytester.path / "__footprints__" / "test_memory").glob("*"))
        return {path.name: tomllib.loads(path.read_text()) for path in files}


@pytest.fixture
def suite(pytester, monkeypatch) -> Suite:
    """Outside CI, with this checkout on the path."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    # A suite is rewritten within a second, at equal length: bytecode of the one before would be taken for it.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    return Suite(pytester)


def test_the_package_declares_the_plugin():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert declared == {"jaxckpt": ENTRY_POINT}


def test_a_missing_snapshot_is_written_and_reported_then_passes(suite):
    first = suite.write().run()
    first.assert_outcomes(passed=1)
    first.stdout.fnmatch_lines(["*= footprints =*", "test_step: 97 MiB on h200, written; commit it: *test_step.toml"])
    assert suite.snapshots["test_step.toml"]["total_bytes"] == 97 * 2**20
    second = suite.run("--jaxckpt-strict")
    second.assert_outcomes(passed=1)
    second.stdout.no_fnmatch_line("*footprints =*")


@pytest.mark.parametrize(("ci", "options"), [("true", ()), ("1", ()), ("", ["--jaxckpt-strict"])])
def test_a_missing_snapshot_fails_on_ci_and_is_not_written(suite, monkeypatch, ci, options):
    monkeypatch.setenv("CI", ci)
    result = suite.write().run(*options)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*SnapshotFileError: jaxckpt_snapshot in test_step: there is no snapshot.*"])
    assert suite.snapshots == {}


@pytest.mark.parametrize("ci", ["", "0", "false"])
def test_ci_may_be_set_to_nothing(suite, monkeypatch, ci):
    monkeypatch.setenv("CI", ci)
    suite.write().run().assert_outcomes(passed=1)


def test_a_costly_change_fails_and_lists_layers_until_accepted(suite):
    suite.write().run()
    result = suite.write(layer_mib=4).run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*FootprintAssertionError: jaxckpt_snapshot in test_step: the step takes more memory than its snapshot.",
            "*Got:    121 MiB on h200, +24 MiB (+24.7%)",
            "*Needed: at most 98 MiB: the snapshot's 97 MiB and the tolerance (1%, at least 1 MiB)",
            '*Try:    pytest "test_memory.py::test_step" --jaxckpt-update, if this is meant',
            "*GPT/block_[*]/mlp * 0-11 * 2 MiB * 4 MiB * +24 MiB * 2 MiB * 4 MiB * +24 MiB",
        ]
    )
    result.stdout.no_fnmatch_line("*check.py*")  # the traceback ends in the user's line
    assert suite.snapshots["test_step.toml"]["total_bytes"] == 97 * 2**20
    updated = suite.run("--jaxckpt-update")
    updated.assert_outcomes(passed=1)
    updated.stdout.fnmatch_lines(["test_step: 121 MiB on h200 (was 97 MiB on h200), updated: *"])
    suite.run("--jaxckpt-strict").assert_outcomes(passed=1)


def test_less_memory_passes_and_says_so(suite):
    suite.write().run()
    result = suite.write(layer_mib=1).run("--jaxckpt-strict")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["test_step: 85 MiB, -12 MiB (-12.4%) beside its snapshot; --jaxckpt-update keeps *"])
    assert suite.snapshots["test_step.toml"]["total_bytes"] == 97 * 2**20


MANY = """
import pytest
from tests.testing.footprints import made

@pytest.mark.parametrize("layers", [2, 3])
class TestModel:
    @pytest.mark.parametrize("odd", ["a/b", "c d"])
    def test_step(self, jaxckpt_snapshot, layers, odd):
        jaxckpt_snapshot(made(layers=layers), name="train")
        jaxckpt_snapshot(made(layers=layers, head_mib=1), name="eval")

@pytest.mark.xdist_group("one")  # with --dist loadgroup it becomes part of the node's id
def test_step(jaxckpt_snapshot):
    jaxckpt_snapshot(made())
"""


def test_classes_parameters_and_names_have_files_of_their_own(suite):
    suite.write(MANY).run().assert_outcomes(passed=5)
    kept = suite.snapshots
    assert len(kept) == 9
    assert {(each["test"], each["name"]) for each in kept.values()} == {
        ("test_step", ""),
        *(
            (f"TestModel::test_step[{o}-{n}]", name)
            for o in ("a/b", "c d")
            for n in (2, 3)
            for name in ("train", "eval")
        ),
    }
    suite.run("--jaxckpt-strict").assert_outcomes(passed=5)


def test_workers_of_xdist_write_read_and_report(suite):
    pytest.importorskip("xdist")
    result = suite.write(MANY).run("-n", "2", "--dist", "loadgroup", alone=True)
    result.assert_outcomes(passed=5)
    assert sum("written; commit it" in line for line in result.outlines) == 9
    assert len(suite.snapshots) == 9
    suite.run("--jaxckpt-strict").assert_outcomes(passed=5)


def test_one_name_twice_in_one_test_is_refused(suite):
    text = "from tests.testing.footprints import made\ndef test_twice(jaxckpt_snapshot):\n"
    result = suite.write(text + "    jaxckpt_snapshot(made())\n    jaxckpt_snapshot(made())\n").run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*two snapshots of one name.*", "*Got: *name='' twice*"])


def test_the_snapshot_of_another_machine_is_not_compared(suite):
    suite.write().run()
    result = suite.write(SUITE.replace("LAYER_MIB)", "LAYER_MIB, target='b200')")).run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*the snapshot is of another machine.*", '*Try: *name="b200" for a snapshot of its own*']
    )


def test_another_jax_is_named_where_the_figures_differ(suite):
    suite.write().run()
    suite.write(SUITE.replace("=LAYER_MIB", "=1, jax_version='0.13'")).run().assert_outcomes(passed=1)
    result = suite.write(SUITE.replace("=LAYER_MIB", "=4, jax_version='0.13'")).run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*The snapshot was made with jax 0.12.0 and compiler 0.12.0; here are jax 0.13*"])


def test_a_damaged_snapshot_fails_until_it_is_written_anew(suite):
    suite.write().run()
    path = suite.pytester.path / "__footprints__" / "test_memory" / "test_step.toml"
    merged = path.read_text().replace("total_bytes = 1", "<<<<<<< ours\ntotal_bytes = 1")
    path.write_text(merged)
    for _ in range(2):
        result = suite.run()
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*no snapshot that can be compared*", "*Got: *it is no TOML*"])
    assert path.read_text() == merged
    suite.run("--jaxckpt-update").assert_outcomes(passed=1)
    suite.run("--jaxckpt-strict").assert_outcomes(passed=1)


def test_suites_that_do_not_use_the_fixture_pay_for_nothing(suite):
    suite.write(
        """
        import sys

        def test_nothing_is_loaded():
            assert "jaxckpt.testing.plugin" in sys.modules
            ours = {name for name in sys.modules if name.startswith("jaxckpt.") and not name.startswith("jaxckpt._")}
            assert ours == {"jaxckpt.testing", "jaxckpt.testing.plugin"}
            assert not {"jax", "numpy", "rich", "tomlkit"} & set(sys.modules)
        """
    )
    # Other people's plugins may import jax; they are not what is looked at.
    result = suite.pytester.runpytest_subprocess("-p", ENTRY_POINT, "--disable-plugin-autoload")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*footprints =*")


def test_the_options_and_the_fixture_are_documented(suite):
    suite.run("--help").stdout.fnmatch_lines(["*--jaxckpt-update*accept*", "*--jaxckpt-strict*"])
    suite.run("--fixtures").stdout.fnmatch_lines(["jaxckpt_snapshot*", "*Keeps what a step takes*"])


REAL = """
import jax, jax.numpy as jnp

def step(w, x):
    return w - jax.grad(lambda w: jnp.tanh(jnp.tanh(x @ w) @ w).sum())(w)

def test_memory(jaxckpt_snapshot):
    shapes = (512, 512), (ROWS, 512)
    w, x = (jax.ShapeDtypeStruct(shape, "float32") for shape in shapes)
    made = jaxckpt_snapshot(step, w, x, target="h200", donate_argnums=0)
    assert made.alias_bytes == 512 * 512 * 4
"""


def test_a_real_step_is_compiled_kept_and_compared(suite):
    if not compiler_for("cuda").fits:
        pytest.skip("NVIDIA's compiler is not installed")
    suite.write(REAL.replace("ROWS", "4096")).run().assert_outcomes(passed=1)
    suite.run("--jaxckpt-strict").assert_outcomes(passed=1)
    assert suite.snapshots["test_memory.toml"]["scopes"]
    result = suite.write(REAL.replace("ROWS", "8192")).run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the step takes more memory than its snapshot.*", "*temporaries *MiB*"])
