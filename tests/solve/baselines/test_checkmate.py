"""Checkmate's programme against a search over all schedules that its stages allow."""

import heapq

import pytest
from hypothesis import given, settings, strategies as st

from jaxckpt._errors import TooLargeError
from jaxckpt.solve import Problem, solve
from jaxckpt.solve.baselines.checkmate import MOST_KERNELS, Kernels, schedule
from tests.graphs import RATES, chain, without_fusion
from tests.solve.oracle import fastest, frontier


def least_cost(kernels: Kernels, budget_bytes: float) -> float | None:
    """The least seconds over all schedules: stage after stage, op after op, run or not, freed or not; by Dijkstra."""
    length, size = len(kernels.cost_s), kernels.size_bytes
    queue: list[tuple[float, int, int, frozenset[int]]] = [(0.0, 0, 0, frozenset())]
    seen = set()
    while queue:
        cost, t, k, there = heapq.heappop(queue)
        if t == length:
            return cost
        if (t, k, there) in seen:
            continue
        seen.add((t, k, there))
        for value in there:
            heapq.heappush(queue, (cost, t, k, there - {value}))
        after = (t, k + 1) if k < t else (t + 1, 0)
        if k < t:
            heapq.heappush(queue, (cost, *after, there))
        if k not in there and there.issuperset(kernels.reads[k]):
            with_it = there | {k}
            if sum(size[v] for v in with_it) <= budget_bytes:
                heapq.heappush(queue, (cost + kernels.cost_s[k], *after, with_it))
    return None


@st.composite
def small_kernels(draw: st.DrawFn) -> Kernels:
    length = draw(st.integers(2, 5))
    return Kernels(
        cost_s=tuple(float(draw(st.integers(1, 4))) for _ in range(length)),
        size_bytes=tuple(draw(st.integers(1, 3)) for _ in range(length)),
        reads=tuple(
            tuple(sorted(draw(st.sets(st.integers(0, k - 1), max_size=2)))) if k else () for k in range(length)
        ),
    )


@settings(max_examples=40)
@given(small_kernels(), st.integers(2, 12))
def test_no_schedule_within_the_budget_is_faster(kernels, budget_bytes):
    solved, best = schedule(kernels, budget_bytes=budget_bytes), least_cost(kernels, budget_bytes)
    assert (None if solved is None else solved.cost_s) == best


def forward_and_back(length: int) -> Kernels:
    """A chain whose backward reads each value again."""
    reads = [(), *((k - 1,) for k in range(1, length)), (length - 1,)]
    reads += [(length - 1 - k, length + k - 1) for k in range(1, length)]
    return Kernels(
        cost_s=(1.0,) * 2 * length, size_bytes=(1,) * 2 * length, reads=tuple(map(tuple, map(sorted, reads)))
    )


def test_less_memory_costs_more_until_nothing_fits():
    kernels = forward_and_back(4)
    costs = [schedule(kernels, budget_bytes=budget) for budget in (6, 5, 4, 3, 2)]
    assert [solved and solved.cost_s for solved in costs] == [8.0, 8.0, 9.0, 11.0, None]
    assert [least_cost(kernels, budget) for budget in (6, 5, 4, 3, 2)] == [8.0, 8.0, 9.0, 11.0, None]


def test_what_is_kept_into_a_stage_was_there_before():
    solved = schedule(forward_and_back(4), budget_bytes=4)
    for t in range(1, 8):
        assert solved.kept[t] <= solved.kept[t - 1] | solved.runs[t - 1]
        assert t in solved.runs[t]


@pytest.mark.parametrize("length", [3, 4, 5])
def test_plans_of_a_chain_are_no_faster_than_the_best_of_all(length):
    problem = Problem(graph=without_fusion(chain(length, flops=1e8)), rates=RATES)
    best = frontier(problem)
    for temp_bytes, _ in best:
        plan = solve(problem, "checkmate", temp_budget_bytes=temp_bytes)
        if plan.prediction.temp_bytes <= temp_bytes:
            assert plan.prediction.step_s >= fastest(best, temp_bytes) * (1 - 1e-9)


def test_a_step_of_too_many_kernels_is_refused_with_the_limit():
    with pytest.raises(TooLargeError, match=f"at most {MOST_KERNELS} kernels") as caught:
        solve(Problem(graph=chain(40), rates=RATES), "checkmate", temp_budget_bytes=1)
    assert caught.value.ops == 80
    assert len(str(caught.value).splitlines()) == 4
