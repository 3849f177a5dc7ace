"""Cuts of the forward pass: found by structure, cheapest under their limit."""

from itertools import combinations

import pytest
from hypothesis import given, strategies as st

from jaxckpt.ir import Phase, Recompute, Save
from jaxckpt.solve import Problem
from jaxckpt.solve.stages import _CUT_BYTES, _cheapest_cut, boundaries, candidate_cuts, finer_stages, stage_index
from tests.graphs import RATES, Builder, graphs


def blocks(count: int, *, loss: bool = False):
    """Residual blocks whose branches are four times as wide as the stream; a loss of the stream reduces it."""
    build = Builder()
    stream = build.op("dot_general", build.input(1000), size_bytes=1000)
    made, joints = [], [stream]
    for _ in range(count):
        wide = build.op("dot_general", stream, size_bytes=4000)
        narrow = build.op("dot_general", wide, size_bytes=1000)
        made += [stream, wide, narrow]
        stream = build.op("sort", stream, narrow, size_bytes=1000)
        joints.append(stream)
    if loss:
        made.append(stream)
        stream = build.op("reduce_sum", stream, size_bytes=4)
    cotangent = build.op("dot_general", stream, size_bytes=4, phase=Phase.BACKWARD)
    for value in reversed(made):
        cotangent = build.op("dot_general", value, cotangent, size_bytes=4, phase=Phase.BACKWARD)
    return build.graph(cotangent), joints


def test_blocks_are_cut_at_their_joints_without_any_name():
    graph, joints = blocks(8)
    problem = Problem(graph=graph, rates=RATES)
    found = [boundaries(problem, stages) for stages in candidate_cuts(problem)]
    finest = max((b for b in found if b <= set(joints)), key=len)
    assert len(finest) >= 6


def test_the_loss_is_no_part_of_the_last_block():
    """The stage of the last block ends behind its widest residual, where the stream alone crosses."""
    graph, joints = blocks(8, loss=True)
    problem = Problem(graph=graph, rates=RATES)
    cuts = candidate_cuts(problem, before_head=True)
    finest = max((c for c in cuts if boundaries(problem, c) <= set(joints)), key=len)
    assert joints[-1] in boundaries(problem, finest)


@pytest.mark.parametrize("widest_bytes", [4_000, 100_000])
@pytest.mark.parametrize(("head_bytes", "narrow"), [(64_000, True), (4_000, False)])
def test_a_head_with_large_output_of_small_input_starts_a_stage(head_bytes, narrow, widest_bytes):
    """Whatever stands in the blocks before it: the first of them makes the widest value, or none does."""
    build = Builder()
    stream = build.op("dot_general", build.input(1000), size_bytes=1000)
    made = [stream]
    made.append(build.op("dot_general", made[-1], size_bytes=widest_bytes))
    made.append(build.op("dot_general", made[-1], size_bytes=1000))
    for _ in range(6):
        made.append(build.op("dot_general", made[-1], size_bytes=4000))
        made.append(build.op("dot_general", made[-1], size_bytes=1000))
    last = made[-1]
    made.append(build.op("dot_general", last, size_bytes=head_bytes))
    cotangent = build.op("dot_general", made[-1], size_bytes=4, phase=Phase.BACKWARD)
    for value in reversed(made):
        cotangent = build.op("dot_general", value, cotangent, size_bytes=4, phase=Phase.BACKWARD)
    problem = Problem(graph=build.graph(cotangent), rates=RATES)
    head = problem.graph.producer[made[-1]]
    several = [stages for stages in candidate_cuts(problem, before_head=True) if len(stages) > 1]
    assert several
    if narrow:
        assert all(head in stages for stages in several)
    else:
        assert several == [stages for stages in candidate_cuts(problem) if len(stages) > 1]
    assert (0,) in candidate_cuts(problem, before_head=True)


@given(graphs())
def test_every_forward_op_has_a_stage_and_stages_ascend(graph):
    problem = Problem(graph=graph, rates=RATES)
    for stages in candidate_cuts(problem):
        assert list(stages) == sorted(set(stages))
        home = stage_index(graph, stages)
        assert set(home) == {op.id for op in graph.ops if op.phase is Phase.FORWARD}
        assert list(home.values()) == sorted(home.values())


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8),
    st.integers(1, 40),
)
def test_no_other_cut_under_the_limit_is_cheaper(pairs, limit):
    needed, crossing = [n for n, _ in pairs], [c for _, c in pairs]

    def cost(cut):
        edges = [*cut, len(needed)]
        loop_splits = zip(edges, edges[1:], strict=False)
        if any(sum(needed[i:j]) > limit and j - i > 1 for i, j in loop_splits):
            return float("inf")
        return sum(crossing[i] + _CUT_BYTES for i in cut if i)

    starts = range(1, len(needed))
    every = [(0, *cut) for k in range(len(needed)) for cut in combinations(starts, k)]
    assert cost(_cheapest_cut(needed, crossing, limit)) == min(map(cost, every))


@pytest.mark.parametrize("reads_across", [False, True])
def test_a_stage_is_cut_further_unless_a_clone_reads_another_across_the_cut(reads_across):
    build = Builder()
    first = build.op("dot_general", build.input(1000), size_bytes=1000)
    activated = build.op("erfc", first, size_bytes=1000)
    second = build.op("dot_general", activated, size_bytes=1000)
    others = (activated,) if reads_across else ()
    last = build.op("erfc", second, *others, size_bytes=1000)
    output = cotangent = build.op("dot_general", last, size_bytes=1000)
    for value in (last, activated):
        cotangent = build.op("dot_general", value, cotangent, size_bytes=1000, phase=Phase.BACKWARD)
    graph = build.graph(cotangent)
    problem = Problem(graph=graph, rates=RATES)
    decisions = {first: Save(), second: Save(), activated: Recompute(), last: Recompute()}
    plan = problem.plan(decisions, (0,), "by hand")
    start = graph.producer[last]
    assert finer_stages(problem, plan, (start,)) == ((0,) if reads_across else (0, start))
    assert finer_stages(problem, plan, (graph.producer[output],)) == (0,), "no clone is behind the cut"
