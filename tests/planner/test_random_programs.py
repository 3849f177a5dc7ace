"""Random steps: no simple rule is faster than the plan at the rule's own total."""

import jax
import pytest
from hypothesis import given, settings, strategies as st

from jaxckpt.machine import targets
from jaxckpt.planner import Planner
from tests.planner.test_batches import FakePlanner
from tests.programs import build, programs

GPU = any(status.name == "h200" and status.usable for status in targets())
TOLERANCE = 0.005


def slower_than_rules(program, make):
    """Rules that are faster than the plan at their totals by more than the tolerance, with both times."""
    case = build(program, rows=4096, width=256)
    args = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), case.args)
    planner = make(case.step, *args, target="h200", donate_argnums=case.donate_argnums)
    found = {}
    for rule in planner.simple_rules:
        compiled = planner.measure(rule)
        rule_s = planner.step_s_with_stalls(compiled)
        plan = planner.plan(budget=compiled.footprint.total_bytes)
        if plan.estimated_step_s > (1 + TOLERANCE) * rule_s:
            found[rule.strategy] = rule_s, plan.estimated_step_s
    return found


@settings(max_examples=5, deadline=None)
@given(programs, st.sampled_from([0.8, 1.0, 1.25]))
def test_by_the_model(program, off):
    """The compiler is the model, with temporaries that are off by a factor."""
    assert not slower_than_rules(program, type("Off", (FakePlanner,), {"off": off}))


@pytest.mark.slow  # minutes: up to a hundred compiles
@pytest.mark.skipif(not GPU, reason="needs the CUDA plugin: pip install 'jaxckpt[gpu-targets]'")
@settings(max_examples=3, deadline=None)
@given(programs)
def test_as_compiled(program):
    assert not slower_than_rules(program, Planner)
