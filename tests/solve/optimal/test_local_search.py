"""Plans changed in one place at a time."""

from hypothesis import given, strategies as st

from jaxckpt.ir import Graph, Phase, Save
from jaxckpt.solve import Problem, solve
from jaxckpt.solve.optimal.local_search import LocalSearch
from tests.graphs import RATES, Builder, chain, graphs


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


@given(graphs(), st.sampled_from(["none", "full"]))
def test_each_schedule_is_replayed_once(graph: Graph, strategy: str):
    replayed = []

    class Counted(Problem):
        def replay_schedule(self, scheduled):
            replayed.append(scheduled.steps)
            return super().replay_schedule(scheduled)

    search = LocalSearch(Counted(graph=graph, rates=RATES))
    plan = solve(search.problem, strategy)
    assert len(search.problem.op_s) == len(graph.ops)  # a replay of its own
    replayed.clear()
    search.improve(plan, None)
    search.improve(plan, plan.predicted.temp_bytes)
    assert len(replayed) == len(set(replayed))


def test_a_value_that_there_is_room_for_is_kept():
    problem = Problem(graph=chain(8, flops=1e9), rates=RATES)
    full = solve(problem, "full")
    polished = LocalSearch(problem).improve(full, solve(problem, "none").predicted.temp_bytes)
    assert polished.predicted.recomputed_ops < full.predicted.recomputed_ops


def test_the_nearest_plan_differs_in_one_value_or_cut():
    problem = Problem(graph=chain(8, flops=1e9), rates=RATES)
    plan = solve(problem, "sqrt")
    search, budget = LocalSearch(problem), plan.predicted.temp_bytes - 1
    nearest = search.nearest(plan, budget)
    values = plan.decisions.keys() | nearest.decisions.keys()
    changed = [v for v in values if plan.decisions.get(v) != nearest.decisions.get(v)]
    assert nearest.predicted.temp_bytes <= budget
    assert len(changed) + len({*plan.stages} ^ {*nearest.stages}) == 1


def test_without_a_plan_that_fits_the_nearest_one_is_smaller():
    problem = Problem(graph=chain(8, flops=1e9), rates=RATES)
    plan = solve(problem, "sqrt")
    nearest = LocalSearch(problem).nearest(plan, 0)
    assert nearest.predicted.temp_bytes < plan.predicted.temp_bytes


def with_shared_product(layers: int) -> Graph:
    """Layers that all read one product of the arguments, and their gradients, of which none reads that product."""
    build = Builder()
    x, w = build.input(4000), build.input(4000)
    shared = build.op("dot_general", x, w, size_bytes=4000)
    products, hidden = [], x
    for _ in range(layers):
        products.append(build.op("dot_general", hidden, shared, size_bytes=4000))
        hidden = build.op("dot_general", products[-1], w, size_bytes=4000)
    cotangent = build.op("dot_general", hidden, size_bytes=4000, phase=Phase.BACKWARD)
    for made in reversed(products):
        cotangent = build.op("dot_general", made, cotangent, size_bytes=4000, phase=Phase.BACKWARD)
    return build.graph(cotangent)


def test_a_boundary_that_no_gradient_reads_can_be_recomputed():
    problem = Problem(graph=with_shared_product(8), rates=RATES)
    full = solve(problem, "full")
    shared = problem.graph.ops[0].writes[0]
    polished = LocalSearch(problem).improve(full, None)
    assert isinstance(full.decisions[shared], Save)
    assert shared not in polished.decisions


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
    assert LocalSearch(problem).nearest(full, 0) is full
