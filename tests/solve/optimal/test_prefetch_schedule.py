"""How long copies may take: as long as they need, no longer, and as rules say where they say it."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from jaxckpt.ir import Offload, Save
from jaxckpt.solve import Offloading, Problem
from jaxckpt.solve.optimal.prefetch_schedule import with_prefetch_distances
from tests.graphs import RATES, chain

BYTES = 4 * 1024
LAYERS = tuple(range(16))
LAYER_S = 1e6 / 1e12 + RATES.launch_s  # of a product that `chain` makes


def problem(layers=16, *, copies_of_layers=1.0, **offloading):
    """A chain of layers in which one copy takes as long as so many of them."""
    graph = chain(layers, size_bytes=BYTES)
    rates = replace(RATES, host_bandwidth_bytes_per_s=BYTES / (copies_of_layers * LAYER_S))
    return Problem(graph=graph, rates=rates, offloading=Offloading(**offloading))


def chosen(asked, decision=None, layers=16, **options):
    values = range(1, layers)
    plan = with_prefetch_distances(
        asked, dict.fromkeys(values, decision or Offload()), tuple(range(layers)), tuple(range(layers)), **options
    )
    return [plan.decisions[v] for v in values]


@pytest.mark.parametrize(("copies_of_layers", "expected"), [(0.5, 1), (1.5, 2), (2.5, 3)])
def test_a_copy_may_take_the_fewest_layers_that_are_long_enough(copies_of_layers, expected):
    made = chosen(problem(copies_of_layers=copies_of_layers))[2]
    assert made.load_distance == expected
    assert made.store_distance in (expected - 1, expected)  # its own layer helps to hide the copy out


def test_no_copy_may_take_more_than_a_quarter_of_the_layers():
    assert {d.prefetch for d in chosen(problem(copies_of_layers=100.0))} == {4}


@given(st.floats(0.1, 5))
def test_all_loads_have_one_distance(copies_of_layers):
    """XLA's scheduler gives no copy more time before its reader than the copy that starts next."""
    assert len({d.prefetch for d in chosen(problem(copies_of_layers=copies_of_layers), queued=True)}) == 1


def test_the_distance_is_the_smallest_of_the_fastest_step_that_fits():
    """The second of two loads that queue on the link is late with smaller distances; larger ones take memory."""
    asked, values = problem(copies_of_layers=3.5), (9, 10)
    saved = dict.fromkeys(range(1, 16), Save())

    def plan(**options):
        decisions = saved | dict.fromkeys(values, Offload(leave=1))
        return with_prefetch_distances(asked, decisions, LAYERS, LAYERS, queued=True, **options)

    def of_distance(k):
        return asked.replay(replace(plan(), decisions=saved | dict.fromkeys(values, Offload(prefetch=k, leave=1))))

    assert {plan().decisions[v].prefetch for v in values} == {5}
    assert of_distance(4).step_s > of_distance(5).step_s == of_distance(6).step_s
    within = plan(limit_bytes=of_distance(5).peak_bytes - 1)
    assert {within.decisions[v].prefetch for v in values} == {4}


def test_what_a_rule_says_of_layers_is_kept():
    decisions = chosen(problem(copies_of_layers=2.5), Offload(prefetch=1))
    assert {d.prefetch for d in decisions} == {1}
    assert {d.leave for d in decisions[:-2]} == {1}
    assert {d.prefetch for d in chosen(problem(copies_of_layers=2.5, prefetch=2))} == {2}


def test_a_plan_that_offloads_nothing_is_left_alone():
    asked = problem()
    plan = with_prefetch_distances(asked, {1: Save()}, (0,), (0,))
    assert (plan.decisions, plan.layers) == ({1: Save()}, ())


@given(st.floats(0.1, 50), st.integers(0, 5))
def test_nothing_is_waited_for_behind_the_end(copies_of_layers, leave):
    made = chosen(problem(8, copies_of_layers=copies_of_layers), Offload(leave=leave), layers=8)
    ends = [home + 1 + decision.store_distance for home, decision in enumerate(made)]
    assert all(end <= 8 for end in ends)
