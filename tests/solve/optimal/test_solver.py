"""Plans of the optimal solver: valid, within what they predict, never slower for more memory."""

import dataclasses
from itertools import product

import pytest
from hypothesis import given, strategies as st

from benchmarks.strangers import STRANGERS
from jaxckpt._errors import UnknownStrategyError
from jaxckpt.ir import Recompute, Save
from jaxckpt.machine import Target
from jaxckpt.schedule import schedule
from jaxckpt.solve import OptimalSolver, Problem, solve
from jaxckpt.solve.effort import Effort
from jaxckpt.solve.optimal.compose import compose, least_seconds
from jaxckpt.solve.optimal.options import stage_options
from jaxckpt.solve.optimal.solver import _MOST_SLOWER
from jaxckpt.solve.optimal.stage_memory import profile_stages
from jaxckpt.solve.optimal.stage_problem import split_into_stages
from jaxckpt.solve.stages import candidate_cuts
from jaxckpt.trace import trace_step
from tests.graphs import RATES, chain, graphs


def budgets(problem: Problem):
    """From less than anything can do to more than everything needs."""
    most = solve(problem, "none").prediction.temp_bytes
    return [int(most * share) for share in (0.1, 0.4, 0.6, 0.8, 0.9, 1.0, 1.5)]


@given(graphs())
def test_plans_can_be_laid_out_and_decide_only_what_exists(graph):
    for strategy in ("optimal", "none", "full"):
        plan = solve(Problem(graph=graph, rates=RATES), strategy, temp_budget_bytes=1)
        schedule(graph, plan)
        assert plan.fingerprint == graph.fingerprint
        assert all(isinstance(d, Save | Recompute) for d in plan.decisions.values())
        assert all(graph.producer[v] is not None for v in plan.decisions)


@given(graphs(), st.sampled_from(["full", "every", "every:1", "sqrt", "dots"]))
def test_no_plan_of_a_rule_that_fits_is_predicted_to_be_faster(graph, strategy):
    problem = Problem(graph=graph, rates=RATES)
    rule = solve(problem, strategy)
    plan = OptimalSolver(problem, rules=lambda: [rule]).solve(rule.predicted.temp_bytes, allow_empty=False)
    assert plan.predicted.temp_bytes <= rule.predicted.temp_bytes
    assert plan.predicted.step_s <= _MOST_SLOWER * rule.predicted.step_s


def test_the_stages_of_rules_are_solved_too():
    step = STRANGERS["plain-mlp-1"].full()
    graph = trace_step(step.function, *step.args, donate_argnums=step.donate_argnums).graph
    problem = Problem(graph=graph, rates=Target("h200").rates)
    rule = solve(problem, "sqrt")
    budget = int(1.1 * rule.predicted.temp_bytes)
    unaware, aware = OptimalSolver(problem), OptimalSolver(problem, rules=lambda: [rule])
    unaware.neighbour = aware.neighbour = lambda plan, _: plan
    known_s = min(rule.predicted.step_s, unaware.solve(budget).predicted.step_s)
    plan = aware.solve(budget)
    assert plan.predicted.temp_bytes <= budget
    assert plan.predicted.step_s < 0.95 * known_s


def test_the_search_for_the_least_memory_starts_from_the_rule_of_most_stages_too(monkeypatch):
    problem = Problem(graph=chain(8, flops=1e9), rates=RATES)
    rules = [solve(problem, "every:1"), solve(problem, "every:4")]
    solver, starts = OptimalSolver(problem, rules=lambda: rules), []
    monkeypatch.setattr(solver._local_search, "improve", lambda plan, _: starts.append(plan) or plan)
    assert solver.min_memory_plan in starts
    assert rules[0] in starts and rules[1] not in starts


def test_searches_start_from_faster_rules_that_nearly_fit(monkeypatch):
    problem = Problem(graph=chain(8, flops=1e9), rates=RATES)
    rule = solve(problem, "every")
    budget = rule.predicted.temp_bytes

    def changed(strategy, bytes_share, seconds_share):
        temp_bytes, step_s = int(bytes_share * budget), seconds_share * rule.predicted.step_s
        return dataclasses.replace(
            rule,
            strategy=strategy,
            prediction=dataclasses.replace(rule.predicted, temp_bytes=temp_bytes, step_s=step_s),
        )

    rules = [changed("near", 1.05, 0.5), changed("far", 1.2, 0.4), changed("slow", 1.05, 2.0)]
    solver, starts = OptimalSolver(problem, rules=lambda: rules), []
    monkeypatch.setattr(solver, "neighbour", lambda plan, _: starts.append(plan.strategy) or rule)
    solver.solve(budget, allow_empty=False)
    assert "near" in starts
    assert not {"far", "slow"}.intersection(starts)


@given(graphs())
def test_a_plan_fits_its_budget_wherever_a_smaller_plan_is_known(graph):
    solver = OptimalSolver(Problem(graph=graph, rates=RATES))
    smallest_bytes = solver.min_memory_plan.prediction.temp_bytes
    for budget_bytes in budgets(solver.problem):
        plan = solver.solve(budget_bytes)
        assert plan.prediction.temp_bytes <= max(budget_bytes, smallest_bytes)


@given(graphs())
def test_enough_memory_means_the_step_as_it_is(graph):
    solver = OptimalSolver(Problem(graph=graph, rates=RATES))
    assert not solver.solve(None).decisions
    assert not solver.solve(solver.empty_plan.prediction.temp_bytes).decisions


def test_more_memory_never_gives_a_slower_plan():
    solver = OptimalSolver(Problem(graph=chain(18, flops=1e9), rates=RATES))
    most = solver.empty_plan.prediction.temp_bytes
    seconds = [solver.solve(int(most * k / 40)).prediction.step_s for k in range(12, 41, 3)]
    assert seconds == sorted(seconds, reverse=True)
    assert len(set(seconds)) > 5


def test_a_chain_fits_into_a_third_of_its_memory():
    solver = OptimalSolver(Problem(graph=chain(36, flops=1e9), rates=RATES))
    plan = solver.solve(solver.empty_plan.prediction.temp_bytes // 3)
    assert plan.prediction.temp_bytes <= solver.empty_plan.prediction.temp_bytes // 3
    assert plan.prediction.recomputed_ops <= 36


@given(graphs())
def test_the_same_problem_gives_the_same_plan(graph):
    first = solve(Problem(graph=graph, rates=RATES), temp_budget_bytes=20000)
    assert first == solve(Problem(graph=graph, rates=RATES), temp_budget_bytes=20000)


@given(graphs(most_ops=7))
def test_no_combination_of_options_within_the_budget_is_faster(graph):
    problem = Problem(graph=graph, rates=RATES, effort=Effort(options=4))
    stages = max(candidate_cuts(problem), key=len)[:4]
    cut = split_into_stages(problem, stages)
    options = stage_options(cut, {})
    seen = profile_stages(cut, options, {})

    def peak(chosen):
        kept = [stage[k].saved_bytes for stage, k in zip(options, chosen, strict=True)]
        return max(i.own_bytes[chosen[i.stage]] + sum(kept[t] for t in i.holding) for i in seen.intervals)

    def seconds(chosen):
        return sum(stage[k] for stage, k in zip(seen.stage_s, chosen, strict=True))

    every = list(product(*(range(len(stage)) for stage in options)))
    for budget_bytes in budgets(problem):
        chosen = compose(options, seen, budget_bytes=budget_bytes)
        fitting = [seconds(c) for c in every if peak(c) <= budget_bytes]
        if not fitting:
            assert chosen is None
        else:
            assert peak(chosen) <= budget_bytes + 1
            assert seconds(chosen) <= min(fitting) * 1.01 + 1e-9
            assert least_seconds(options, seen, budget_bytes=budget_bytes) <= min(fitting) * (1 + 1e-6) + 1e-12


def test_a_plan_says_how_much_the_best_one_could_save():
    solver = OptimalSolver(Problem(graph=chain(24, flops=1e9), rates=RATES))
    most = solver.empty_plan.predicted.temp_bytes
    gaps = [solver.solve(int(share * most)).predicted.gap for share in (0.4, 0.6, 0.8)]
    assert all(0 <= gap < 0.2 for gap in gaps)


def test_plans_that_differ_only_in_their_bound_are_the_same_plan():
    plan = OptimalSolver(Problem(graph=chain(12, flops=1e9), rates=RATES)).empty_plan
    bounded = dataclasses.replace(plan, prediction=dataclasses.replace(plan.predicted, bound_s=0.0))
    assert plan == bounded
    assert bounded.predicted.gap == 1.0
    assert plan.predicted.gap is None


def test_an_unknown_strategy_is_an_error_that_lists_known_ones():
    with pytest.raises(UnknownStrategyError, match="'optimal', 'none', 'full'"):
        solve(Problem(graph=chain(3), rates=RATES), "optimum")
