"""What no plan may change: rules that say "must" bind every solver, rules that prefer do not."""

import dataclasses

import pytest
from hypothesis import given, strategies as st

from jaxckpt.ir import Offload, Recompute, Save
from jaxckpt.policy import Match, Policy, Rule
from jaxckpt.solve import OptimalSolver, Problem, required_decisions, solve
from tests.graphs import RATES, chain

POLICY = Policy(
    default="recompute", rules=(Rule(match=Match(primitive="dot_general", max_bytes=4000), decision=Save()),)
)


def problem(required=None):
    return Problem(graph=chain(8), rates=RATES, required=required or {})


def test_rules_that_say_must_are_demanded_and_nothing_else():
    required = required_decisions(problem(), POLICY)
    assert set(required.values()) == {Save()}
    prefer = dataclasses.replace(POLICY, rules=tuple(dataclasses.replace(r, strength="prefer") for r in POLICY.rules))
    assert required_decisions(problem(), prefer) == {}
    assert required_decisions(problem(), Policy(default="recompute")) == {}
    assert required_decisions(problem(), None) == {}


@pytest.mark.parametrize("strategy", ["optimal", "full"])
@pytest.mark.parametrize("decision", [Save(), Recompute(), Offload()])
def test_every_solver_keeps_to_what_must_be(strategy, decision):
    plan = solve(problem({3: decision}), strategy, temp_budget_bytes=16_000)
    assert plan.decisions[3] == decision


@given(st.dictionaries(st.integers(1, 7), st.sampled_from([Save(), Recompute()]), max_size=4), st.integers(4, 40))
def test_the_optimum_keeps_to_what_must_be_at_any_budget(required, kilobytes):
    plan = OptimalSolver(problem(required)).solve(kilobytes * 1000)
    for value, decision in required.items():
        if plan.strategy != "none":
            assert plan.decisions[value] == decision
        else:
            assert decision == Save()


def test_without_a_limit_only_what_must_be_recomputed_is():
    plan = OptimalSolver(problem({3: Recompute()})).solve(None)
    assert [v for v, d in plan.decisions.items() if d == Recompute()] == [3]
