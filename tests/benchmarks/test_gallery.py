"""The gallery: entries have threads, their programs compute the same in every version, and tables equal the data."""

import re

import jax
import jax.numpy as jnp
import pytest

from benchmarks import tables
from benchmarks.gallery import ENTRIES, heads, networks, page, questions, scans
from benchmarks.record import read
from jaxckpt import Planner

FEWER_RESULTS = {"quax-28"}
"""Entries whose advice returns less: it leaves out gradients that are zero."""
THREAD = re.compile(r"https://github\.com/[\w-]+/[\w-]+/(issues|pull)/(\d+)")


def test_names_are_unique_and_end_with_the_number_of_their_thread():
    entries = [entry for file in (scans, networks, heads) for entry in file.ENTRIES]
    assert len(ENTRIES) == len(entries) == len({entry.address for entry in entries})
    for entry in entries:
        found = THREAD.fullmatch(entry.address)
        assert found and entry.name.endswith(f"-{found[2]}"), entry.name


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.name)
def test_programs_trace_at_their_full_sizes(entry):
    for build in filter(None, (entry.written, entry.advised)):
        step = build()
        assert jax.tree.leaves(jax.eval_shape(step.function, *step.args))


def values(spec, key):
    if jnp.issubdtype(spec.dtype, jnp.integer):
        return jax.random.randint(key, spec.shape, 0, 4, spec.dtype)
    return (0.5 * jax.random.normal(key, spec.shape)).astype(spec.dtype)


def arguments(step):
    specs, tree = jax.tree.flatten(step.args)
    keys = jax.random.split(jax.random.key(0), len(specs))
    return jax.tree.unflatten(tree, [values(spec, key) for spec, key in zip(specs, keys, strict=True)])


def assert_equal(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        near = 3e-2 if one.dtype == jnp.bfloat16 else 1e-4
        assert one.dtype == other.dtype
        assert jnp.allclose(one.astype(float), other.astype(float), rtol=near, atol=near * 1e-1)


def with_the_leaves_of(found, expected):
    """The leaves of a tree at the paths of another; the leaves at no such path are zeros."""
    leaves = dict(jax.tree_util.tree_leaves_with_path(expected))
    paths, tree = jax.tree_util.tree_flatten_with_path(found)
    chosen = [leaves.pop(path) for path, _ in paths]
    assert leaves and not any(jnp.any(leaf) for leaf in leaves.values())
    return jax.tree.unflatten(tree, chosen)


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.name)
def test_every_version_computes_the_same_gradient(entry):
    step = entry.written(**entry.small)
    args = arguments(step)
    expected = jax.jit(step.function)(*args)
    assert any(jnp.any(leaf) for leaf in jax.tree.leaves(expected))
    if entry.advised is not None:
        advised = entry.advised(**entry.small)
        assert jax.tree.map(jnp.shape, advised.args) == jax.tree.map(jnp.shape, step.args)
        found = jax.jit(advised.function)(*args)
        assert_equal(found, with_the_leaves_of(found, expected) if entry.name in FEWER_RESULTS else expected)
    plan = Planner(step, target="cpu").plan(budget=2**40, strategy="full")
    assert_equal(jax.jit(plan.apply(step.function))(*args), expected)


def test_the_budget_is_that_of_the_advice_or_half():
    def answers(written, advised=None):
        found = {questions.WRITTEN: {"total_bytes": written}}
        return found if advised is None else {**found, questions.ADVISED: {"total_bytes": advised}}

    assert questions.budget({}) is None
    assert questions.budget(answers(100)) == 50
    assert questions.budget(answers(100, 30)) == 30
    assert questions.budget(answers(100, 120)) == 50


def test_the_tables_equal_the_data():
    written = {tables.GALLERY: page.tables(), tables.README: {"gallery": page.readme_table()}}
    for file, expected in written.items():
        assert tables.filled(file.read_text(), expected) == file.read_text(), "run: python -m benchmarks.tables"


def test_the_data_have_every_entry_and_every_entry_has_its_section():
    sections = re.findall(r"^## (\S+-\d+)$", tables.GALLERY.read_text(), flags=re.MULTILINE)
    assert sections == list(ENTRIES)
    assert set(read("gallery")["entries"]) == set(ENTRIES)
    text = tables.GALLERY.read_text()
    assert all(f"({entry.address})" in text for entry in ENTRIES.values())


def test_failures_and_refusals_are_shown():
    refused = {"refused": True, "minimum_bytes": 2**30, "compiles": 2, "wall_s": 3.0}
    assert page.cell(refused) == "refused: at least 1.00 GiB"
    assert page.cell({"error": "ValueError: no\nmore", "wall_s": 1.0}) == "failed: ValueError: no"
    assert page.cell(None) == "not asked"
