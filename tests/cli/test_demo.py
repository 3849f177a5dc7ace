"""The demo: its data, how it is shown, and the model that it plans."""

import dataclasses
import json
import sys

import jax
import jax.numpy as jnp
import pytest

from jaxckpt._errors import InfeasibleBudgetError, MissingPackageError
from jaxckpt.cli.demo import DemoResult, demo_report, run_demo
from jaxckpt.report import render_text
from tests.report.test_reports import FOOTPRINT, GIB, plan

pytestmark = pytest.mark.usefixtures("no_local_search")


def result() -> DemoResult:
    refused = InfeasibleBudgetError("no.", got="1", needed="2", advice="3", minimum_bytes=2 * GIB)
    return DemoResult(
        target="h200",
        layers=12,
        batch=8,
        baselines={"no remat": FOOTPRINT},
        plans={"4GiB": plan()},
        refused={"1GiB": refused},
        planning_s=4.0,
        wall_s=175.0,
    )


def test_the_demo_shows_baselines_plans_and_what_it_refused():
    text = render_text(demo_report(result()), width=140)
    lines = text.splitlines()
    assert any(line.strip().startswith("no remat") and "3.06 GiB" in line for line in lines)
    assert any("4.00 GiB" in line and "3.06 GiB" in line and "-2.0%" in line for line in lines)
    assert "InfeasibleBudgetError: no." in text
    assert "175 s in all" in text


def test_the_demos_table_has_no_empty_columns():
    table = demo_report(result()).parts[0]
    none, row = (dict(zip((c.heading for c in table.columns), row, strict=True)) for row in table.rows)
    assert none["predicted"] == none["budget"] == ""
    assert (row["predicted"], row["off by"], row["recompute"]) == ("3.00 GiB", "-2.0%", "1.00 ms")
    bare = demo_report(dataclasses.replace(result(), plans={})).parts[0]
    assert [c.heading for c in bare.columns] == ["version", "total", "arguments", "temp", "compile"]


def test_the_demo_as_data_goes_through_json():
    data = json.loads(json.dumps(result().to_dict()))
    assert data["baselines"]["no remat"]["total_bytes"] == FOOTPRINT.total_bytes
    assert data["plans"]["4GiB"]["predicted_bytes"] == plan().predicted.total_bytes
    assert data["refused"]["1GiB"]["minimum_bytes"] == 2 * GIB


def test_without_flax_the_demo_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "flax.linen", None)
    monkeypatch.delitem(sys.modules, "jaxckpt.cli.gpt2", raising=False)
    monkeypatch.delattr("jaxckpt.cli.gpt2", raising=False)
    with pytest.raises(MissingPackageError, match=r"jaxckpt\[flax\]"):
        run_demo(layers=1)


def test_the_demos_step_is_described_without_an_array():
    gpt2 = pytest.importorskip("jaxckpt.cli.gpt2")
    model = gpt2.training_step(layers=1, batch=2)
    leaves = jax.tree.leaves(model.args)
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(model.args[0]))
    assert parameters == 2 * 50304 * 768 + 1024 * 768 + 12 * 768**2 + 13 * 768 + 2 * 768


def test_the_demos_step_trains():
    gpt2 = pytest.importorskip("jaxckpt.cli.gpt2")
    model = gpt2.training_step(layers=2, batch=2, width=32, heads=2, vocabulary=64, sequence=16)
    parameters = model.model.init(jax.random.key(0), jnp.zeros((1, 16), jnp.int32))
    state, tokens = model.optimiser.init(parameters), jax.random.randint(jax.random.key(1), (2, 17), 0, 64)
    step, losses = jax.jit(model.step), []
    for _ in range(5):
        parameters, state, loss = step(parameters, state, tokens)
        losses.append(float(loss))
    assert losses == sorted(losses, reverse=True)
