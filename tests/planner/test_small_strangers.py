"""Twelve steps of the battery, shallow: a plan at the total of `jax.checkpoint` around each block is never slower."""

import jax
import pytest

import jaxckpt
from benchmarks.strangers import SMALL, STRANGERS
from benchmarks.strangers.findings import SLOWER
from benchmarks.strangers.questions import LOWERS, TARGET
from benchmarks.strangers.rules import POLICIES, checkpointed
from jaxckpt import Planner
from jaxckpt.machine import targets

pytestmark = [
    pytest.mark.skipif(
        not any(status.name == TARGET and status.usable for status in targets()),
        reason="needs the CUDA plugin: pip install 'jaxckpt[gpu-targets]'",
    ),
    pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="the battery is for the newest jax: one end is enough"),
]


@pytest.mark.parametrize("name", SMALL)
def test_no_plan_is_worse_than_jax_checkpoint_around_each_block(name):
    stranger = STRANGERS[name]
    written = jaxckpt.footprint(stranger.shallow(), target=TARGET)
    by_rule = jaxckpt.footprint(stranger.shallow(checkpointed(POLICIES["nothing_saveable"])), target=TARGET)
    planner = Planner(stranger.shallow(), target=TARGET)
    if by_rule.total_bytes < LOWERS * written.total_bytes:
        plan = planner.plan(budget=by_rule.total_bytes)
        assert plan.footprint.total_bytes <= by_rule.total_bytes
        assert plan.footprint.step_s <= (1 + SLOWER) * by_rule.step_s
    else:  # the rule lowers nothing; half of what full recomputation saves, and the step is not slower than with that
        fully = planner.plan(budget=written.total_bytes, strategy="full").footprint
        plan = planner.plan(budget=(fully.total_bytes + written.total_bytes) // 2)
        assert plan.footprint.step_s <= (1 + SLOWER) * fully.step_s


@pytest.mark.parametrize("name", ["crossed-features-1", "gru-1"])
def test_no_rule_that_fits_is_predicted_to_be_faster_than_the_solvers_plan(name):
    planner = Planner(STRANGERS[name].shallow(), target=TARGET)
    most_bytes = planner.solver.empty_plan.predicted.temp_bytes
    rules = [rule.predicted for rule in planner.simple_rules if rule.predicted.temp_bytes < most_bytes]
    for rule in rules:
        planner.forget_budgets()
        plan = planner.solver.solve(rule.temp_bytes, allow_empty=False)
        assert plan.predicted.temp_bytes <= rule.temp_bytes
        assert plan.predicted.step_s <= (1 + SLOWER) * rule.step_s
