"""A stage's options against every subset that it could keep."""

from itertools import chain as joined, combinations

import pytest
from hypothesis import given

from jaxckpt.ir import GraphPlan
from jaxckpt.schedule import schedule
from jaxckpt.solve import Problem, boundaries
from jaxckpt.solve.effort import Effort
from jaxckpt.solve.optimal import options as options_module
from jaxckpt.solve.optimal.options import StageProgramme, stage_options
from jaxckpt.solve.optimal.stage_problem import split_into_stages
from jaxckpt.solve.problem import decide
from jaxckpt.solve.stages import candidate_cuts
from tests.graphs import RATES, chain, graphs


def every_choice(programme: StageProgramme):
    """(bytes, seconds) of each subset of the candidates."""
    size_bytes = programme.size_bytes
    sizes = range(len(size_bytes) + 1)
    for kept in joined.from_iterable(combinations(size_bytes, k) for k in sizes):
        seconds = sum(programme.clone_s[k] for k in programme.recomputed(frozenset(kept)))
        yield sum(size_bytes[i] for i in kept), seconds + sum(programme.pin_s[i] for i in kept)


def decided(options):
    """All but the one that leaves its stage untouched."""
    return [option for option in options if not option.untouched]


def test_the_last_option_leaves_a_stage_as_it_stands():
    graph = chain(12)
    problem = Problem(graph=graph, rates=RATES)
    for stages in candidate_cuts(problem):
        for options in stage_options(split_into_stages(problem, stages), {}):
            *others, last = options
            if last.untouched:
                assert last.untouched <= problem.read_after_forward
                assert not last.saved
            assert not any(option.untouched for option in others)
    everywhere = frozenset().union(
        *(options[-1].untouched for options in stage_options(split_into_stages(problem, stages), {}))
    )
    plan = decide(problem, boundaries(problem, stages), stages, "optimal", everywhere)
    assert schedule(graph, plan).steps == schedule(graph, GraphPlan(fingerprint="")).steps


@pytest.mark.parametrize("most_labels", [0, 2**16], ids=["integer programme", "Pareto frontier"])
@given(graph=graphs(most_ops=8))
def test_no_subset_of_the_same_bytes_is_faster_than_an_option(most_labels, graph):
    problem = Problem(graph=graph, rates=RATES, effort=Effort(options=64))
    for stages in candidate_cuts(problem):
        cut = split_into_stages(problem, stages)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(options_module, "_MOST_LABELS", most_labels)
            found = stage_options(cut, {})
        for stage, options in zip(cut.subproblems, found, strict=True):
            programme = StageProgramme(stage)
            for option in decided(options):
                best = min(seconds for size, seconds in every_choice(programme) if size <= option.saved_bytes)
                assert option.recompute_s == pytest.approx(best, rel=2e-3, abs=1e-8)


@given(graphs())
def test_options_start_with_nothing_and_get_faster_as_they_grow(graph):
    problem = Problem(graph=graph, rates=RATES)
    for stages in candidate_cuts(problem):
        for options in stage_options(split_into_stages(problem, stages), {}):
            assert options[0].saved == frozenset()
            kept = decided(options)
            assert [o.saved_bytes for o in kept] == sorted(o.saved_bytes for o in kept)
            seconds = [o.recompute_s for o in kept]
            assert all(b <= a + 1e-9 for a, b in zip(seconds, seconds[1:], strict=False))


def test_stages_of_one_structure_share_their_options():
    cut = split_into_stages(Problem(graph=chain(12), rates=RATES), tuple(range(0, 12, 3)))
    assert len({stage.key for stage in cut.subproblems[1:-1]}) == 1
    known = {}
    first, second = stage_options(cut, known)[1:-1]
    assert len(known) == len({stage.key for stage in cut.subproblems})
    moved = [frozenset(v + 3 for v in option.saved) for option in first]
    assert [option.saved for option in second] == moved


@given(graphs())
def test_what_ops_with_effects_write_is_never_a_candidate(graph):
    problem = Problem(graph=graph, rates=RATES)
    for stages in candidate_cuts(problem):
        for options in stage_options(split_into_stages(problem, stages), {}):
            for option in options:
                assert all(not graph.ops[graph.producer[v]].effects for v in option.saved)


@given(graph=graphs(most_ops=8))
def test_a_short_frontier_is_offered_whole(graph):
    problem = Problem(graph=graph, rates=RATES, effort=Effort(options=64))
    for stages in candidate_cuts(problem):
        cut = split_into_stages(problem, stages)
        for stage, options in zip(cut.subproblems, stage_options(cut, {}), strict=True):
            programme = StageProgramme(stage)
            sizes = {size for size, _ in every_choice(programme)}
            cheapest = {size: programme.option(programme.solve(size)) for size in sizes}
            assert {option.saved for option in decided(options)} == {option.saved for option in cheapest.values()}
