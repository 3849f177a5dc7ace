"""PyTorch's partitioner: the cut is minimal, nothing banned runs again, the knapsacks are the best there are."""

from itertools import combinations

import pytest
from hypothesis import given, strategies as st

from jaxckpt.ir import Kind
from jaxckpt.schedule import Run, schedule
from jaxckpt.solve import Problem, solve
from jaxckpt.solve.baselines.knapsack import KNAPSACKS, dp, greedy, ilp
from jaxckpt.solve.baselines.mincut import Partitioner
from tests.graphs import RATES, chain, graphs
from tests.solve.oracle import subsets

items = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 50)), min_size=1, max_size=8)


def best_value(weights, values, most) -> float:
    """By trying every set."""
    sets = (c for k in range(len(weights) + 1) for c in combinations(range(len(weights)), k))
    return max(sum(values[i] for i in c) for c in sets if sum(weights[i] for i in c) <= most + 1e-12)


@given(items, st.integers(0, 100))
def test_exact_knapsacks_are_as_good_as_every_set_and_greedy_fits(pairs, percent):
    weights, values, most = [w / 100 for w, _ in pairs], [float(v) for _, v in pairs], percent / 100
    best = best_value(weights, values, most)
    for knapsack in (dp, ilp, greedy):
        taken = knapsack(weights, values, most)
        assert sum(weights[i] for i in taken) <= most + 1e-9
        assert sum(values[i] for i in taken) <= best
        if knapsack is not greedy:
            assert sum(values[i] for i in taken) == pytest.approx(best)


def separates(partitioner: Partitioner, kept: frozenset[int], banned: frozenset[int]) -> bool:
    """Whether the backward follows from what is kept without any run of what is banned."""
    graph, problem = partitioner.problem.graph, partitioner.problem
    pending, seen = [v for v in problem.read_after_forward if v not in kept], set()
    while pending:
        value = pending.pop()
        if value in seen or value in kept or value in partitioner.free:
            continue
        if value in banned:
            return False
        seen.add(value)
        pending.extend(graph.ops[graph.producer[value]].reads)
    return True


@given(graphs(most_ops=8))
def test_no_set_of_values_separates_for_less_than_the_cut(graph):
    partitioner = Partitioner(Problem(graph=graph, rates=RATES))
    for banned in (partitioner.costly, partitioner.costly | partitioner.unlisted | partitioner.read_by_products):
        saved = partitioner.cut(banned)
        assert separates(partitioner, saved, banned)
        sets = (frozenset(c) for c in subsets(sorted(partitioner.savable)))
        least = min(sum(partitioner.capacity[v] for v in c) for c in sets if separates(partitioner, c, banned))
        assert sum(partitioner.capacity[v] for v in saved) == least


@given(graphs())
def test_at_full_memory_nothing_costly_runs_again(graph):
    problem = Problem(graph=graph, rates=RATES)
    costly = {graph.producer[v] for v in Partitioner(problem).costly}
    plan = solve(problem, "mincut:1.0")
    again = {step.op for step in schedule(graph, plan).steps if isinstance(step, Run) and step.is_clone}
    assert again.isdisjoint(costly)


@pytest.mark.parametrize("knapsack", KNAPSACKS)
@pytest.mark.parametrize("fraction", [0.8, 0.5, 0.2])
def test_a_memory_fraction_bounds_the_bytes_that_are_kept(knapsack, fraction):
    partitioner = Partitioner(Problem(graph=chain(20), rates=RATES))
    most = 4000 * len(partitioner.saved(1.0, knapsack))
    kept = partitioner.saved(fraction, knapsack)
    assert 0 < 4000 * len(kept) <= fraction * most
    assert all(
        partitioner.problem.graph.ops[partitioner.problem.graph.producer[v]].kind is Kind.CONTRACTION for v in kept
    )


def test_at_no_memory_nothing_is_kept():
    assert Partitioner(Problem(graph=chain(20), rates=RATES)).saved(0.0, "dp") == frozenset()
