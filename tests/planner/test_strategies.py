"""Strategies of others in the planner: held to the budget by the compiler, those that read it asked again."""

import jax
import jax.numpy as jnp
import pytest

from jaxckpt._errors import InfeasibleBudgetError, PolicyError, TooLargeError, UnknownStrategyError
from jaxckpt.machine import targets
from jaxckpt.planner import Planner

pytestmark = pytest.mark.usefixtures("no_local_search")

GPU = any(status.name == "h200" and status.usable for status in targets())
needs_compiler = pytest.mark.skipif(not GPU, reason="needs the CUDA plugin: pip install 'jaxckpt[gpu-targets]'")
ARGS = ([jax.ShapeDtypeStruct((256, 256), jnp.float32)] * 12, jax.ShapeDtypeStruct((8192, 256), jnp.float32))


def step(weights, x):
    def loss(weights):
        hidden = x
        for w in weights:
            hidden = jnp.tanh(hidden @ w)
        return jnp.mean(hidden**2)

    return jax.grad(loss)(weights)


@pytest.fixture(scope="module")
def planner():
    return Planner(step, *ARGS, target="h200", max_compiles=3)


@needs_compiler
@pytest.mark.parametrize("strategy", ["rotor", "revolve"])
def test_a_strategy_that_reads_the_budget_fits_as_compiled(planner, strategy):
    plan = planner.plan(budget=0.75, strategy=strategy)
    assert plan.strategy == strategy
    assert plan.footprint.total_bytes <= plan.budget_bytes
    assert len(plan.attempts) <= 3


@needs_compiler
def test_a_strategy_that_reads_no_budget_is_compiled_once(planner):
    plan = planner.plan(budget="1GiB", strategy="every:4")
    assert plan.strategy == "every:4"
    assert len(plan.attempts) == 1
    with pytest.raises(InfeasibleBudgetError) as caught:
        planner.plan(budget=planner.fixed_bytes + 2**20, strategy="every:4")
    assert caught.value.minimum_bytes == plan.footprint.total_bytes


@needs_compiler
def test_a_strategy_with_a_budget_leaves_a_step_that_fits(planner):
    plan = planner.plan(budget="1GiB", strategy="rotor")
    assert not plan.decisions
    assert "fits as it is" in plan.notes[0]


def test_what_a_strategy_cannot_do_is_refused_before_any_compile(monkeypatch):
    monkeypatch.setattr("jaxckpt.planner.planner.lower_flat", lambda *_, **__: pytest.fail("compiled"))
    monkeypatch.setattr("jaxckpt.solve.baselines.checkmate.MOST_KERNELS", 16)
    planner = Planner(step, *ARGS, target="cpu")
    for strategy, error in (
        ("megatron", PolicyError),
        ("names", PolicyError),
        ("checkmate", TooLargeError),
        ("every:0", UnknownStrategyError),
        ("dots:2", UnknownStrategyError),
    ):
        with pytest.raises(error):
            planner.plan(budget="1GiB", strategy=strategy)
