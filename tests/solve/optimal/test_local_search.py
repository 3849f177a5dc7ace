"""Plans changed in one place at a time."""

from hypothesis import given, strategies as st

from jaxckpt.ir import Graph, Save
from jaxckpt.solve import Problem, solve
from jaxckpt.solve.optimal.local_search import LocalSearch
from tests.graphs import RATES, chain, graphs


@given(graphs(), st.sampled_from(["none", "full"]), st.sampled_from([None, 0.5, 0.8, 1.0]))
def test_a_polished_plan_is_no_worse(graph: Graph, strategy: str, share: float | None):
    problem = Problem(graph=graph, rates=RATES)
    plan = solve(problem, strategy)
    most = solve(problem, "none").predicted.temp_bytes
    budget = None if share is None else int(share * most)
    polished = LocalSearch(problem).improve(plan, budget)
    assert problem.predict(polished) == polished.predicted
    if budget is None:
        assert polished.predicted.temp_bytes <= plan.predicted.temp_bytes
    elif plan.predicted.temp_bytes <= budget:
        assert polished.predicted.temp_bytes <= budget
        assert polished.predicted.step_s <= plan.predicted.step_s


def test_a_value_that_there_is_room_for_is_kept():
    problem = Problem(graph=chain(8, flops=1e9), rates=RATES)
    full = solve(problem, "full")
    polished = LocalSearch(problem).improve(full, solve(problem, "none").predicted.temp_bytes)
    assert polished.predicted.recomputed_ops < full.predicted.recomputed_ops


def test_the_last_stage_has_no_clones_that_free_nothing():
    problem = Problem(graph=chain(8, flops=1e9), rates=RATES)
    full = solve(problem, "full")
    polished = LocalSearch(problem).improve(full, None)
    in_last = [v for v in polished.decisions if problem.graph.producer[v] >= polished.stages[-1]]
    assert polished.predicted.temp_bytes < full.predicted.temp_bytes
    assert [type(polished.decisions[v]) for v in in_last] == [Save]


def test_a_graph_too_large_to_replay_often_is_left_as_it_is():
    problem = Problem(graph=chain(3000), rates=RATES)
    full = solve(problem, "full")
    assert LocalSearch(problem).improve(full, None) is full
