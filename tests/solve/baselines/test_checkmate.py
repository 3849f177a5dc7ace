"""Checkmate's programme against a search over all schedules that its stages allow, and its relaxation against both."""

import heapq

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from benchmarks.keras_networks import NETWORKS, constant_bytes, training_kernels
from jaxckpt._errors import TooLargeError
from jaxckpt.solve import Problem, solve
from jaxckpt.solve.baselines import checkmate
from jaxckpt.solve.baselines.checkmate import MOST_KERNELS, Kernels, Solved, approximate, relax, schedule, two_phase
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


def check(kernels: Kernels, solved: Solved, budget_bytes: float) -> None:
    """Constraints (1b), (1c) and (8), and bytes by definition: a value stays until its last use in the stage."""
    length, peak_bytes = len(kernels.cost_s), 0
    for t, (kept, runs) in enumerate(zip(solved.kept, solved.runs, strict=True)):
        assert t in runs and max(runs) == t and max(kept, default=-1) < t
        assert all(i in kept | runs for j in runs for i in kernels.reads[j])
        assert not t or kept <= solved.kept[t - 1] | solved.runs[t - 1]
        following = solved.kept[t + 1] if t + 1 < length else frozenset()
        for k in range(t + 1):
            needed = {i for j in runs if j >= k for i in kernels.reads[j]} | following
            in_memory = {i for i in kept | {j for j in runs if j < k} if i in needed} | ({k} & runs)
            peak_bytes = max(peak_bytes, sum(kernels.size_bytes[i] for i in in_memory))
    assert peak_bytes <= solved.peak_bytes <= budget_bytes
    assert solved.cost_s == sum(kernels.cost_s[i] for runs in solved.runs for i in runs)


@settings(max_examples=40)
@given(small_kernels(), st.integers(2, 12))
def test_a_rounded_schedule_is_valid_within_the_budget_and_never_faster_than_the_optimum(kernels, budget_bytes):
    relaxed, best = relax(kernels, budget_bytes=budget_bytes), least_cost(kernels, budget_bytes)
    rounded = approximate(kernels, budget_bytes=budget_bytes)
    if best is not None:
        assert relaxed.cost_s <= best * (1 + 1e-7)
    if rounded is not None:
        check(kernels, rounded, budget_bytes)
        assert rounded.cost_s >= best


@settings(max_examples=40)
@given(small_kernels(), st.randoms(use_true_random=False))
def test_two_phase_rounding_runs_no_more_than_what_is_kept_demands(kernels, random):
    length = len(kernels.cost_s)
    kept = np.array([[random.random() < 0.5 for _ in range(length)] for _ in range(length)])
    solved = two_phase(kernels, kept)
    check(kernels, solved, sum(kernels.size_bytes))
    for t, runs in enumerate(solved.runs):
        following = solved.kept[t + 1] if t + 1 < length else frozenset()
        for i in runs - {t}:
            assert i not in solved.kept[t]
            assert i in following or any(i in kernels.reads[j] for j in runs)


def test_everything_kept_is_everything_once():
    kernels = forward_and_back(6)
    solved = two_phase(kernels, np.ones((12, 12), bool))
    assert solved.cost_s == 12 and all(runs == {t} for t, runs in enumerate(solved.runs))
    nothing = two_phase(kernels, np.zeros((12, 12), bool))
    assert nothing.cost_s == sum(len(ancestors(kernels, t)) for t in range(12))


def ancestors(kernels: Kernels, kernel: int) -> set[int]:
    return {kernel}.union(*(ancestors(kernels, i) for i in kernels.reads[kernel]))


def paper_linear(layers: int) -> Kernels:
    """The paper's linear network of unit costs and bytes: `gen_linear_graph` of its code; the loss is in the middle."""
    reads = [(), *((k,) for k in range(2 * layers))]
    for k in range(layers):
        reads[2 * layers - k] = tuple(sorted({k, *reads[2 * layers - k]}))
    count = 2 * layers + 1
    return Kernels(cost_s=(1.0,) * count, size_bytes=(1,) * count, reads=tuple(reads))


def test_the_integrality_gap_of_eight_layers_is_that_of_the_paper():
    # Appendix A: 1.18 for 8 layers (n = 17), unit costs and bytes, and a budget of 4.
    kernels = paper_linear(8)
    optimum, relaxed = schedule(kernels, budget_bytes=4), relax(kernels, budget_bytes=4)
    assert len(kernels.cost_s) == 17
    assert optimum.cost_s == 26
    assert f"{optimum.cost_s / relaxed.cost_s:.2f}" == "1.18"


@pytest.mark.parametrize(
    ("budget", "optimum", "most"), [(10, 17, 17), (9, 18, 18), (8, 19, 19), (7, 20, 20), (6, 21, 22), (5, 22, 27)]
)
def test_rounding_reaches_the_optimum_of_a_linear_network_or_nearly(budget, optimum, most):
    kernels = paper_linear(8)
    assert schedule(kernels, budget_bytes=budget).cost_s == optimum
    rounded = approximate(kernels, budget_bytes=budget)
    check(kernels, rounded, budget)
    assert optimum <= rounded.cost_s <= most


def test_the_largest_batch_of_vgg19_is_that_of_the_paper():
    # Figure 7: 289 images on a V100 of 16 GB, with at most one more forward pass.
    layers = NETWORKS["VGG19"].layers()
    budget_bytes = 16e9 - constant_bytes(layers)
    kernels = training_kernels(layers, 289)
    rounded = approximate(kernels, budget_bytes=budget_bytes)
    assert rounded.peak_bytes <= budget_bytes
    assert rounded.cost_s <= sum(kernels.cost_s) + sum(kernels.cost_s[: len(layers)])
    larger = training_kernels(layers, 290)
    at_once_bytes = (sum(larger.size_bytes[i] for i in (k, *larger.reads[k])) for k in range(len(larger.reads)))
    assert max(at_once_bytes) > budget_bytes


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


@pytest.mark.parametrize("share", [0.8, 0.7])
def test_a_plan_of_the_relaxation_is_within_the_budget_and_nearly_as_fast_as_that_of_the_programme(share, monkeypatch):
    problem = Problem(graph=without_fusion(chain(7, flops=1e8)), rates=RATES)
    budget = int(share * solve(problem, "none").prediction.temp_bytes)
    exact = solve(problem, "checkmate", temp_budget_bytes=budget)
    monkeypatch.setattr(checkmate, "EXACT_KERNELS", 0)
    relaxed = solve(problem, "checkmate", temp_budget_bytes=budget)
    assert relaxed.decisions and relaxed.prediction.temp_bytes <= budget
    assert relaxed.prediction.step_s <= 1.06 * exact.prediction.step_s


def test_a_step_of_too_many_kernels_is_refused_with_the_limit():
    with pytest.raises(TooLargeError, match=f"at most {MOST_KERNELS} kernels") as caught:
        solve(Problem(graph=chain(MOST_KERNELS), rates=RATES), "checkmate", temp_budget_bytes=1)
    assert caught.value.ops == 2 * MOST_KERNELS
    assert len(str(caught.value).splitlines()) == 4
