"""Versions of every kind become footprints; what cannot is refused before anything is compiled."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import jaxckpt
from jaxckpt import ComparisonError, PlanMismatchError, Policy
from jaxckpt.comparison import compare
from jaxckpt.compiler import compile_step
from jaxckpt.compiler.compile_options import dump_options
from tests.compiler.conftest import h200
from tests.memory_maps import made_footprint, memory_map

__all__ = ["h200"]

WEIGHTS = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 4
BATCH = jax.ShapeDtypeStruct((4096, 64), jnp.float32)


def step(weights, batch):
    def loss(weights):
        x = batch
        for i, w in enumerate(weights):
            with jax.named_scope(f"block_{i}"):
                x = jnp.tanh(x @ w)
        return (x**2).mean()

    return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))


@pytest.fixture(scope="module")
def plan(h200):
    return jaxckpt.plan(step, WEIGHTS, BATCH, budget="100MiB", target=h200, donate_argnums=0, strategy="full")


@pytest.fixture(scope="module")
def compared(h200, plan):
    """The step, its plan compiled again, and the plan's own footprint."""
    bare = dataclasses.replace(plan, footprint=None)
    frugal = Policy(default="recompute")
    versions = {"as it is": step, "planned": bare, "known": plan, "policy": frugal, "named": "nothing"}
    return compare(versions, WEIGHTS, BATCH, target=h200, donate_argnums=0)


def test_the_public_name_is_the_function():
    assert jaxckpt.compare is compare


def test_a_plan_is_applied_to_the_first_step_with_its_donation(compared, plan):
    assert compared["known"] is plan.footprint
    for figure in ("argument_bytes", "alias_bytes", "temp_bytes"):
        assert getattr(compared["planned"], figure) == getattr(plan.footprint, figure)
    assert compared["planned"].alias_bytes == compared["as it is"].alias_bytes > 0


def test_a_plan_shows_less_memory_and_its_recomputed_ops(compared):
    assert compared["planned"].total_bytes < compared["as it is"].total_bytes
    again = {op.scope: op.runs for op in compared.recomputed}
    assert any(runs[0] == 0 and runs[1] > 0 and runs[1] == runs[2] for runs in again.values())
    planned, known, *_ = compared.peaks
    assert planned.went
    assert planned.changes == known.changes


def test_a_policy_is_carried_out_whether_given_or_named(compared):
    for name in ("policy", "named"):
        assert compared[name].total_bytes < compared["as it is"].total_bytes
        assert compared[name].alias_bytes == compared["as it is"].alias_bytes


def test_a_policy_needs_a_step_and_a_target(tmp_path):
    Policy(default="recompute").save(tmp_path / "frugal.toml")
    with pytest.raises(ComparisonError, match="no step to carry it out"):
        compare({"frugal": tmp_path / "frugal.toml"}, target="h200")
    with pytest.raises(ComparisonError, match="no target to carry it out"):
        compare({"frugal": "nothing"}, step=step)


def test_one_plan_is_compared_by_its_own_footprint(plan):
    assert compare({"plan": plan})["plan"] is plan.footprint


def test_a_plan_for_another_step_is_refused(plan, h200):
    bare = dataclasses.replace(plan, footprint=None)
    with pytest.raises(PlanMismatchError):
        compare({"plan": bare}, WEIGHTS[:2], BATCH, target=h200, step=step)


def test_footprints_plans_and_dumps_are_read_by_their_paths(tmp_path, plan, h200):
    plan.footprint.save(tmp_path / "made.json.gz")
    plan.save(tmp_path / "made.toml")
    (tmp_path / "dump").mkdir()
    options = dump_options(tmp_path / "dump")
    compile_step(step, WEIGHTS, BATCH, target=h200, donate_argnums=0, compiler_options=options)
    (file,) = (tmp_path / "dump").glob("*after_optimizations.hlo.pb")
    paths = {"footprint": tmp_path / "made.json.gz", "folder": str(tmp_path / "dump"), "file": file}
    said = []
    versions = {"plan": tmp_path / "made.toml", **paths}
    made = compare(versions, target=h200, step=call(), progress=said.append)
    assert made["footprint"] == plan.footprint
    assert made["folder"].temp_bytes == made["file"].temp_bytes > made["footprint"].temp_bytes
    assert made["plan"].temp_bytes == plan.footprint.temp_bytes
    assert [peak.name for peak in made.peaks] == ["footprint", "folder", "file"]
    assert "carrying out plan" in said


def call() -> jaxckpt.Step:
    return jaxckpt.Step(step, args=(WEIGHTS, BATCH), donate_argnums=(0,))


def test_all_problems_are_numbered_before_any_compile(plan):
    bare = dataclasses.replace(plan, footprint=None)
    with pytest.raises(ComparisonError) as caught:
        compare({"step": lambda x: x / 0, "three": 3, "known": made_footprint(memory_map())}, BATCH)
    assert len(caught.value.problems) == 2
    assert "(1) 'step' is a step, and there is no target" in str(caught.value)
    assert "(2) 'three' is a int" in str(caught.value)
    with pytest.raises(ComparisonError, match="nor step="):
        compare({"plan": bare}, target="h200")
    with pytest.raises(ComparisonError, match="no version at all"):
        compare({})
    with pytest.raises(ComparisonError, match="a list"):
        compare([step], BATCH, target="h200")


def test_a_plan_made_for_another_target_is_not_taken_at_its_word(plan):
    with pytest.raises(ComparisonError, match="must be compiled"):
        compare({"plan": plan}, target="h100")


def test_missing_paths_are_errors(tmp_path):
    with pytest.raises(jaxckpt.FootprintFileError):
        compare({"a": tmp_path / "no.json"})
    with pytest.raises(jaxckpt.PlanFileError):
        compare({"a": tmp_path / "no.toml"})
    with pytest.raises(jaxckpt.HloError):
        compare({"a": tmp_path / "no"})
