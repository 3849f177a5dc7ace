"""Planners of chains: where they cut, and that their counts are those of the papers."""

from functools import cache
from itertools import pairwise, product
from math import comb, inf, isqrt

import pytest
from hypothesis import given, strategies as st

from jaxckpt.ir import Recompute, Save
from jaxckpt.solve import Problem, boundaries, solve
from jaxckpt.solve.baselines.chain import chain as stages_of
from jaxckpt.solve.baselines.revolve import advances, first_sweep
from jaxckpt.solve.baselines.rotor import ChainStage, choices, optimum
from jaxckpt.solve.baselines.sqrt import greedy
from tests.graphs import RATES, chain, graphs


def problem(length: int, **facts) -> Problem:
    return Problem(graph=chain(length, flops=1e9), rates=RATES, **facts)


def saved(plan) -> list[int]:
    return [v for v, decision in plan.decisions.items() if decision == Save()]


@pytest.mark.parametrize("length", [1, 2, 9, 16, 25])
def test_a_stack_of_equal_layers_is_a_chain_of_as_many_stages(length):
    assert stages_of(problem(length)) == tuple(range(length))


@given(graphs())
def test_stages_of_a_chain_ascend_from_the_first_op(graph):
    stages = stages_of(Problem(graph=graph, rates=RATES))
    assert stages[0] == 0
    assert list(stages) == sorted(set(stages))


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_only_every_kth_boundary_and_the_last_segment_are_saved(k):
    length = 15
    plan = solve(problem(length), f"every:{k}")
    assert plan.stages == tuple(range(0, length, k))
    assert saved(plan) == list(plan.stages[1:])  # value i + 1 is what op i makes
    dropped = {v for v, decision in plan.decisions.items() if decision == Recompute()}
    assert dropped == set(range(1, plan.stages[-1] + 1)) - set(saved(plan))


@pytest.mark.parametrize("length", [4, 9, 16, 17, 25, 36, 40])
@pytest.mark.parametrize("strategy", ["sqrt", "sqrt:greedy"])
def test_sqrt_keeps_about_the_root_of_the_depth(length, strategy):
    plan = solve(problem(length), strategy)
    root = isqrt(length - 1) + 1
    assert root / 2 <= len(plan.stages) <= 2 * root
    assert len(saved(plan)) == len(plan.stages) - 1
    if strategy == "sqrt":
        assert len(plan.stages) == root


def test_memory_of_sqrt_grows_with_the_root_of_the_depth():
    temp_bytes = {length: solve(problem(length), "sqrt").prediction.temp_bytes for length in (16, 64)}
    assert temp_bytes[64] <= 2.2 * temp_bytes[16]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(0, 30))
def test_greedy_segments_close_at_the_first_stage_beyond_b(made, b):
    starts, x, y = greedy(made, [1] * len(made), b)
    edges = [*starts, len(made)]
    sizes = [sum(made[i:j]) for i, j in pairwise(edges)]
    assert x == len(starts) - 1
    assert y == max(sizes)
    for i, j in pairwise(edges[:-1]):
        assert sum(made[i:j]) > b >= sum(made[i : j - 1])


def reversal(steps: int, snapshots: int) -> int:
    """The fewest advances by trying every split, without any formula."""

    @cache
    def best(length: int, left: int) -> int:
        if length <= 1:
            return 0
        if left == 1:
            return length * (length - 1) // 2
        return min(j + best(length - j, left - 1) + best(j, left) for j in range(1, length))

    return best(steps, snapshots)


@pytest.mark.parametrize("snapshots", range(1, 9))
@pytest.mark.parametrize("steps", [1, 2, 3, 7, 10, 15, 21, 30])
def test_revolves_formula_is_the_best_of_all_schedules(steps, snapshots):
    assert advances(steps, snapshots) == reversal(steps, snapshots)


@pytest.mark.parametrize(("snapshots", "repeats"), [(2, 3), (3, 2), (3, 3), (4, 4)])
def test_binomially_many_steps_run_no_more_than_the_theorem_says(snapshots, repeats):
    steps = comb(snapshots + repeats, repeats)
    assert advances(steps, snapshots) == repeats * steps - comb(snapshots + repeats, repeats - 1)
    assert advances(steps, snapshots) < repeats * steps < advances(steps + 1, snapshots) + steps


@given(st.integers(1, 40), st.integers(1, 12))
def test_the_first_sweep_keeps_as_many_snapshots_as_there_are_with_shrinking_distances(steps, snapshots):
    kept = first_sweep(steps, snapshots)
    assert kept[0] == 0
    assert len(kept) == min(steps, snapshots)
    assert kept[-1] < steps
    assert list(kept) == sorted(set(kept))


@pytest.mark.parametrize(("steps", "snapshots"), [(6, 2), (10, 3), (12, 12), (9, 1)])
def test_rotor_is_revolve_where_only_one_of_equal_stages_fits(steps, snapshots):
    links = [ChainStage(forward_s=1, backward_s=0, input=1, kept=50)] * steps
    assert optimum(links, memory=1 + snapshots + 50) == advances(steps, snapshots) + steps


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 6)), min_size=1, max_size=6), st.data())
def test_rotor_without_a_limit_runs_everything_once_and_never_gains_from_less_memory(sizes, data):
    links = [ChainStage(forward_s=f, backward_s=2 * f, input=i, kept=i + k) for f, i, k in sizes]
    most = sum(link.input + link.kept for link in links)
    assert optimum(links, memory=most) == sum(link.forward_s + link.backward_s for link in links)
    less = data.draw(st.integers(1, most))
    assert optimum(links, memory=less) >= optimum(links, memory=less + 1)


def loop_splits(length: int):
    """Every way to split a chain into stretches that run again or keep everything, the last one not again."""
    for cuts in product([False, True], repeat=length - 1):
        edges = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), length]
        pairs = list(pairwise(edges))
        for again in product([False, True], repeat=len(pairs) - 1):
            yield [(first, end, flag) for (first, end), flag in zip(pairs, (*again, False), strict=True)]


def cost(links, chosen, memory) -> float:
    """Seconds of extra forward work, infinite where a stretch does not fit."""
    room, seconds = memory - links[0].input, 0.0
    for first, end, again in chosen:
        for k in range(first, end):
            if not again:
                room -= links[k].kept
        if again:
            if sum(link.kept for link in links[first:end]) > room:
                return inf
            seconds += sum(link.forward_s for link in links[first:end])
            room -= links[end].input
        if room < 0:
            return inf
    return seconds


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 6)), min_size=1, max_size=6),
    st.integers(1, 40),
)
def test_no_other_choice_of_stages_is_faster_than_rotors(sizes, memory):
    links = [ChainStage(forward_s=f, backward_s=f, input=i, kept=k) for f, i, k in sizes]
    best = min(cost(links, chosen, memory) for chosen in loop_splits(len(links)))
    chosen = choices(links, memory)
    assert (inf if chosen is None else cost(links, chosen, memory)) == best
    if chosen is not None:
        assert [first for first, _, _ in chosen] == [0, *(end for _, end, _ in chosen[:-1])]
        assert optimum(links, memory) <= best + sum(link.forward_s + link.backward_s for link in links)


@pytest.mark.parametrize("strategy", ["revolve", "rotor"])
@pytest.mark.parametrize("share", [0.4, 0.6, 0.9])
def test_planners_of_chains_keep_to_a_budget(strategy, share):
    most = solve(problem(25), "none").prediction.temp_bytes
    plan = solve(problem(25), strategy, temp_budget_bytes=int(share * most))
    assert plan.prediction.temp_bytes <= share * most
    assert boundaries(problem(25), plan.stages) <= set(saved(plan)) | {25}
