"""A step and the options of planning as objects: the same plans as with arguments and keywords."""

import re

import jax
import jax.numpy as jnp
import pytest

import jaxckpt
from jaxckpt import ArgumentError, Planner, PlanOptions, Step, UnknownStrategyError

ARGS = jnp.eye(4), jnp.ones((2, 4))


def step(w, x):
    return jax.grad(lambda w: jnp.tanh(jnp.tanh(x @ w) @ w).sum())(w)


def test_a_step_stands_for_the_function_and_its_arguments():
    made = Step(step, ARGS, donate_argnums=0)
    assert repr(made) == "Step(step, float32[4,4], float32[2,4], donate_argnums=0)"
    plan = jaxckpt.plan(made, budget="1GiB", target="cpu", strategy="full")
    same = jaxckpt.plan(step, *ARGS, budget="1GiB", target="cpu", strategy="full", donate_argnums=0)
    assert plan.decisions == same.decisions
    assert plan.footprint.total_bytes == same.footprint.total_bytes
    assert jaxckpt.analyze(made) == jaxckpt.analyze(step, *ARGS, donate_argnums=0)
    assert jaxckpt.footprint(made, target="cpu").total_bytes > 0
    assert jaxckpt.lint(made) == jaxckpt.lint(step, *ARGS)
    assert jaxckpt.verify(made, plan).ok
    assert jaxckpt.compare({"a": made, "b": step}, *ARGS, target="cpu").names == ("a", "b")


@pytest.mark.parametrize("further", [{"donate_argnums": 0}, {"static_argnums": (1,)}])
def test_a_step_with_further_arguments_is_refused(further):
    made = Step(step, ARGS)
    with pytest.raises(ArgumentError, match="brings its own arguments"):
        jaxckpt.plan(made, budget="1GiB", target="cpu", **further)
    name, value = next(iter(further.items()))
    with pytest.raises(ArgumentError, match=re.escape(f"Step(step, args, {name}={value!r})")):
        jaxckpt.plan(made, budget="1GiB", target="cpu", **further)
    with pytest.raises(ArgumentError, match="1 further arguments"):
        jaxckpt.analyze(made, ARGS[0])


def test_keywords_go_before_options():
    options = PlanOptions(max_compiles=2, recompute_collectives=False)
    planner = Planner(step, *ARGS, target="cpu", options=options, max_compiles=7)
    assert planner.options == PlanOptions(max_compiles=7, recompute_collectives=False)
    with pytest.raises(TypeError, match="alow"):
        Planner(step, *ARGS, target="cpu", alow=("recompute",))


def test_options_are_checked_when_they_are_made():
    with pytest.raises(UnknownStrategyError, match="no recomputation"):
        PlanOptions(allow=())
    with pytest.raises(UnknownStrategyError, match="offload_parameters"):
        PlanOptions(allow=("recompute", "offload_parameters"))


def test_a_keyword_that_another_function_has_is_no_advice():
    """`max_batch` plans by the optimal strategy alone; `plan` has the word."""
    with pytest.raises(ArgumentError, match=r"max_batch has no option 'strategy'\.") as caught:
        jaxckpt.max_batch(lambda _: (step, ARGS), target="cpu", strategy="full")
    assert "strategy=...;" not in str(caught.value)
    assert "multiples_of" in str(caught.value)
    with pytest.raises(ArgumentError, match="plan has no option 'stratgy'; the closest is 'strategy'"):
        jaxckpt.plan(step, *ARGS, budget="1GiB", target="cpu", stratgy="full")


@pytest.mark.parametrize("compiles", [0, -1, 1.5, "3", None, True])
def test_what_is_no_number_of_compiles_is_refused(compiles):
    with pytest.raises(ArgumentError, match="max_compiles=8"):
        PlanOptions(max_compiles=compiles)


def test_one_word_is_a_set_of_decisions():
    assert PlanOptions(allow="recompute") == PlanOptions(allow=["recompute"]) == PlanOptions()
    with pytest.raises(UnknownStrategyError, match="no recomputation"):
        PlanOptions(allow=None)


@pytest.mark.parametrize("positions", ["w", None, 0.5, ("w",)])
def test_what_is_no_position_of_an_argument_is_refused(positions):
    with pytest.raises(ArgumentError, match="counted from 0"):
        Planner(jnp.sin, jnp.ones(2), target="cpu", donate_argnums=positions)
