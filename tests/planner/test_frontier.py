"""Memory against time: compiled plans from the smallest to the fastest, none beaten by another."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import jaxckpt
from jaxckpt._errors import ArgumentError, InfeasibleBudgetError
from jaxckpt.compiler import Footprint
from jaxckpt.planner import Planner, frontier_of
from jaxckpt.planner.frontier_search import _asked
from jaxckpt.planner.planner import CompiledPlan
from jaxckpt.report import frontier_report, render_text
from tests.memory_maps import MIB
from tests.planner.solved import not_compiled
from tests.planner.test_planner import ARGS, needs_compiler, step
from tests.report.test_chart import data_of

pytestmark = pytest.mark.usefixtures("no_local_search")


@pytest.fixture(scope="module")
def frontier(no_local_search):
    return jaxckpt.pareto(step, *ARGS, target="h200", donate_argnums=0, points=5)


@pytest.fixture(scope="module")
def solved(no_local_search):
    """The planner whose solver all others share."""
    planner = Planner(step, *ARGS, target="h200", donate_argnums=0)
    assert planner.solver
    return planner


@pytest.fixture
def modelled(monkeypatch, solved):
    """A planner whose compiler is the model, off by what a test says."""

    def made(off=lambda plan: (1.0, 1.0)):
        planner = not_compiled(solved)

        def measure(plan):
            expected = plan.prediction
            bytes_off, time_off = off(plan)
            planner._footprints[plan] = Footprint(
                argument_bytes=expected.argument_bytes,
                output_bytes=expected.output_bytes,
                alias_bytes=0,
                temp_bytes=int(bytes_off * expected.temp_bytes),
                step_s=time_off * expected.step_s,
            )
            return CompiledPlan(plan, planner._footprints[plan])

        monkeypatch.setattr(planner, "measure", measure)
        monkeypatch.setattr(planner, "measure_all", lambda plans: list(map(measure, plans)))
        return planner

    return made


def assert_monotone(frontier):
    pairs = list(zip(frontier.points, frontier.points[1:], strict=False))
    assert all(one.total_bytes < other.total_bytes and one.step_s > other.step_s for one, other in pairs)
    expected = list(zip(frontier.between, frontier.between[1:], strict=False))
    assert all(one.total_bytes < other.total_bytes and one.step_s > other.step_s for one, other in expected)
    for each in frontier.between:
        assert frontier.smallest.total_bytes < each.total_bytes < frontier.fastest.total_bytes
        assert frontier.fastest.step_s < each.step_s < frontier.smallest.step_s


@needs_compiler
def test_a_frontier_from_smallest_to_fastest_is_monotone(frontier, solved):
    assert_monotone(frontier)
    assert 3 <= len(frontier) <= 5
    assert frontier.fastest.total_bytes <= frontier.unplanned.total_bytes
    assert frontier.fastest.step_s <= frontier.unplanned.step_s
    assert frontier.smallest.total_bytes == not_compiled(solved).floor().total_bytes
    # For the smallest three plans are tried, and two rules that are as small within the error of the model.
    assert frontier.compiles <= 5 + 4


@needs_compiler
def test_each_point_carries_its_plan_and_the_compilers_figures(frontier):
    for point in frontier:
        assert point.plan.footprint.total_bytes == point.total_bytes == point.plan.budget_bytes
        assert point.plan.footprint.step_s == point.step_s
    planned = jax.eval_shape(frontier.smallest.plan.apply(step), *ARGS)
    assert jax.tree.structure(planned) == jax.tree.structure(jax.eval_shape(step, *ARGS))
    assert all(point.plan.estimated_step_s == point.step_s for point in frontier)


@needs_compiler
def test_a_budget_is_answered_with_the_fastest_plan_that_fits_it(frontier):
    assert frontier.at("10GiB") == frontier.fastest.plan
    middle = frontier.points[1]
    assert frontier.at(middle.total_bytes) == frontier.at(middle.total_bytes + 1) == middle.plan
    assert frontier.at(1.0) == frontier.fastest.plan
    with pytest.raises(InfeasibleBudgetError, match="at least") as caught:
        frontier.at("1MiB")
    assert caught.value.minimum_bytes == frontier.smallest.total_bytes


@needs_compiler
def test_the_report_has_a_row_a_plan_and_a_picture(frontier):
    text = render_text(frontier_report(frontier))
    assert f"{frontier.fastest.total_bytes / frontier.unplanned.total_bytes:.0%}" in text
    assert "Estimated time against memory" in text
    drawn = data_of(frontier_report(frontier))
    assert len(drawn["frontier"]) == len(frontier.points)
    assert len(drawn["small"]) == len(frontier.between)


def test_points_are_spread_where_most_is_unknown(modelled):
    frontier = frontier_of(modelled(), points=6)
    assert_monotone(frontier)
    totals = [point.total_bytes for point in frontier]
    gaps = [other - one for one, other in zip(totals, totals[1:], strict=False)]
    assert 5 <= len(totals) <= 6  # of the six, one may be beaten
    assert max(gaps) <= 0.6 * (totals[-1] - totals[0])


def test_a_plan_that_another_one_beats_is_dropped(modelled):
    """One plan in the middle is larger and slower than predicted."""
    first = frontier_of(modelled(), points=3)
    worse = dict(first.points[1].plan.decisions)
    planner = modelled(lambda plan: (3.0, 3.0) if dict(plan.decisions) == worse else (1.0, 1.0))
    frontier = frontier_of(planner, points=3)
    assert_monotone(frontier)
    assert frontier.dropped >= 1
    assert all(dict(point.plan.decisions) != worse for point in frontier)


def test_what_lies_between_is_moved_by_how_far_the_model_was_off(modelled):
    frontier = frontier_of(modelled(lambda plan: (1.25, 2.0)), points=3)
    assert frontier.between
    assert_monotone(frontier)
    right = frontier_of(modelled(), points=3)
    for one, other in zip(frontier.between, right.between, strict=True):
        fixed = 12 * MIB
        assert one.total_bytes - fixed == pytest.approx(1.25 * (other.total_bytes - fixed), rel=0.05)
        assert one.step_s == pytest.approx(2 * other.step_s, rel=0.15)  # the curve is bent, what is between is not


@pytest.mark.parametrize("points", [1, 0, 2.5, True])
def test_a_frontier_has_two_ends(points):
    with pytest.raises(ArgumentError, match="points=8"):
        jaxckpt.pareto(step, *ARGS, target="cpu", points=points)


def test_a_frontier_does_not_depend_on_earlier_budgets():
    planners = [Planner(step, *ARGS, target="h200", donate_argnums=0) for _ in range(2)]
    least, most = (
        plan.predicted.temp_bytes for plan in (planners[0].solver.min_memory_plan, planners[0].solver.empty_plan)
    )
    for part in range(1, 24):
        planners[0].solver.solve(least + (most - least) * part // 24, allow_empty=False)
    asked = [[plan.decisions for plan in _asked(planner, 4)] for planner in planners]
    assert asked[0] == asked[1]


def test_a_step_of_one_plan_has_a_frontier_of_one_point(monkeypatch):
    def shallow(w, x):
        return jax.grad(lambda w: (x @ w).sum())(w)

    planner = Planner(shallow, jnp.ones((4, 4)), jnp.ones((2, 4)), target="h200")
    footprint = Footprint(argument_bytes=1, output_bytes=0, alias_bytes=0, temp_bytes=7)
    monkeypatch.setattr(
        planner, "_lowered", lambda _: SimpleNamespace(compile=lambda: SimpleNamespace(footprint=footprint))
    )
    frontier = frontier_of(planner)
    assert len(frontier) == 1 and frontier.smallest == frontier.fastest
    assert "100%" in render_text(frontier_report(frontier))
