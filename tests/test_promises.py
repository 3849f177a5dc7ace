"""The promises, on random steps: a planned step computes what the step computes, and decides what is there.

Nothing is compiled for a target here; that plans fit by the compiler's figure is shown in `fit/`.
"""

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from jaxckpt._errors import JaxckptError
from jaxckpt.ir import GraphPlan, Recompute, Save
from jaxckpt.rewrite import rewrite
from jaxckpt.solve import OptimalSolver, Problem, solve
from jaxckpt.trace import trace_step
from jaxckpt.verifier.interpret import run_one_by_one
from tests.graphs import RATES
from tests.programs import Case, Program, build, programs
from tests.residuals import residuals
from tests.zoo.case import quick_jit

EXAMPLES = settings(max_examples=10)
FEW = settings(max_examples=4)
"""Where each example is solved for its least memory, which takes seconds."""


def numbers(function, *flat) -> list[np.ndarray]:
    """Flat results as numpy arrays; keys by their data."""
    return [np.asarray(x) for x in jax.tree.leaves(quick_jit(function)(*flat))]


def assert_computes_the_same(case: Case, plan: GraphPlan) -> None:
    """Compiled, within rounding; where a program makes much of rounding, the same bits operation by operation."""
    traced, flat = trace_step(case.step, *case.args), jax.tree.leaves(case.args)
    planned = rewrite(traced, plan)
    expected, found = numbers(traced.flat_function(), *flat), numbers(planned.call, *flat)
    assert [each.dtype for each in expected] == [each.dtype for each in found]
    if not all(np.allclose(one, other, rtol=2e-5, atol=2e-6) for one, other in zip(found, expected, strict=True)):
        one_by_one = run_one_by_one(jax.make_jaxpr(traced.flat_function())(*flat), *flat)
        for one, other in zip(run_one_by_one(planned.jaxpr, *flat), one_by_one, strict=True):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def problem_of(program: Program) -> tuple[Case, Problem]:
    case = build(program)
    donated = case.donate_argnums
    return case, Problem(graph=trace_step(case.step, *case.args, donate_argnums=donated).graph, rates=RATES)


@FEW
@given(programs, st.floats(0.05, 1.1))
def test_optimal_plans_at_random_budgets_compute_the_same(program, share):
    case, problem = problem_of(program)
    solver = OptimalSolver(problem)
    budget_bytes = int(solver.empty_plan.prediction.temp_bytes * share)
    plan = solver.solve(budget_bytes, allow_empty=False)
    smallest_bytes = solver.min_memory_plan.prediction.temp_bytes
    assert plan.prediction.temp_bytes <= max(budget_bytes, smallest_bytes)
    assert_computes_the_same(case, plan)


@EXAMPLES
@given(programs)
def test_full_recomputation_computes_the_same(program):
    case, problem = problem_of(program)
    assert_computes_the_same(case, solve(problem, "full"))


@EXAMPLES
@given(programs, st.data())
def test_any_decisions_on_any_stages_compute_the_same(program, data):
    case, problem = problem_of(program)
    graph = problem.graph
    decisions = {}
    for residual in residuals(graph):
        choices = [None, Save()]
        if not graph.ops[residual.op].effects:
            choices.append(Recompute())
        decision = data.draw(st.sampled_from(choices))
        if decision is not None:
            decisions[residual.value] = decision
    stages = tuple(sorted({0, *data.draw(st.lists(st.integers(0, len(graph.ops) - 1), max_size=4))}))
    plan = GraphPlan(fingerprint=graph.fingerprint, decisions=decisions, stages=stages)
    assert_computes_the_same(case, plan)


@EXAMPLES
@given(programs)
def test_graphs_of_random_steps_are_valid(program):
    _, problem = problem_of(program)
    problem.graph.validate()


def test_a_planned_step_can_be_differentiated_again():
    weights = jax.numpy.full((4, 4), 0.1)
    x = jax.numpy.ones((4, 4))

    def step(w, x):
        def loss(w):
            hidden = x
            for _ in range(4):
                hidden = jax.numpy.tanh(hidden @ w)
            return (hidden**2).sum()

        return jax.grad(loss)(w)

    traced = trace_step(step, weights, x)
    plan = solve(Problem(graph=traced.graph, rates=RATES), "full")
    planned = rewrite(traced, plan).call
    expected = jax.jit(jax.grad(lambda w: step(w, x).sum()))(weights)
    found = jax.jit(jax.grad(lambda w: planned(w, x)[0].sum()))(weights)
    np.testing.assert_allclose(expected, found, rtol=1e-5)


def test_errors_of_ours_are_all_of_one_root():
    with pytest.raises(JaxckptError):
        trace_step(lambda x: x + 1, jax.numpy.ones(3))
