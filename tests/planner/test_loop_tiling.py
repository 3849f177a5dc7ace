"""Nested loops as the planner asks for them: where nothing else fits, as predicted and as compiled."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import jaxckpt
from jaxckpt import InfeasibleBudgetError, Planner
from jaxckpt.ir import LoopTiling, Offload, Recompute, Save
from jaxckpt.machine import Target
from jaxckpt.planner import batch_search, frontier_of
from jaxckpt.planner.loop_tiling import TilingSolver
from jaxckpt.program.inline import open_jaxpr
from jaxckpt.rewrite import rewrite
from jaxckpt.solve import OptimalSolver, Problem
from jaxckpt.trace import trace_step
from tests.planner.scanned import (
    STEP,
    arguments,
    assert_applied,
    assert_refused,
    assert_saved_loaded_and_shown,
    block,
    held_by,
    small_arguments,
)
from tests.planner.solved import not_compiled
from tests.planner.test_batches import FakePlanner
from tests.planner.test_frontier import assert_monotone
from tests.planner.test_planner import needs_compiler

pytestmark = pytest.mark.usefixtures("no_local_search")

LENGTH = 36


LARGE = arguments(LENGTH, 1024, 16384, jnp.bfloat16)
CARRY_BYTES = 16384 * 1024 * 2


def least_untiled(planner):
    """The smallest as compiled of the plans of least predicted memory that tile no loop."""
    compiled = planner.measure_all(planner.solver.min_memory_plans)
    return min(compiled, key=lambda candidate: candidate.footprint.total_bytes)


def solver_of(step, *args):
    traced = trace_step(step, *args)
    return TilingSolver(traced, OptimalSolver(Problem(graph=traced.graph, rates=Target("h200").rates)))


@pytest.fixture(scope="module")
def made():
    return solver_of(STEP, *LARGE)


@pytest.mark.parametrize(
    ("turns", "pairs"),
    [(36, [(6, 6), (9, 4), (12, 3)]), (12, [(4, 3), (6, 2)]), (4, [(2, 2)]), (13, []), (3, []), (2, [])],
)
def test_divisor_pairs_start_at_the_root_and_primes_have_none(turns, pairs):
    solver = solver_of(STEP, *arguments(turns, 1024, 16384, jnp.bfloat16))
    assert [[(nest.outer, nest.inner) for nest in loop_tilings] for loop_tilings in solver.loop_tilings] == [
        [pair] for pair in pairs
    ]
    assert len(solver.min_memory_plans) == bool(pairs and turns > 4)


def test_the_least_memory_grows_with_the_root_of_the_trip_count(made):
    (plan,) = made.min_memory_plans
    whole = made._solver.min_memory_plan
    assert plan.loop_tilings == (LoopTiling(loop=0, outer=6, inner=6),)
    spared_bytes = whole.predicted.temp_bytes - plan.predicted.temp_bytes
    assert spared_bytes == pytest.approx((LENGTH - 12) * CARRY_BYTES, rel=0.15)
    assert whole.predicted.step_s < plan.predicted.step_s
    assert whole.predicted.recompute_s < plan.predicted.recompute_s


def test_with_more_memory_bodies_run_only_twice(made):
    (least,) = made.min_memory_plans
    more = made.solve(2 * least.predicted.temp_bytes, allow_empty=False)
    assert more.loop_tilings
    assert more.predicted.step_s < least.predicted.step_s
    assert more.predicted.temp_bytes <= 2 * least.predicted.temp_bytes
    assert Save() in more.decisions.values() or len(more.decisions) < len(least.decisions)
    assert made.solve(None).loop_tilings == ()


def test_what_must_be_decided_of_a_value_is_decided_of_its_copy():
    def named(x, w):
        hidden = checkpoint_name(jnp.sin(x @ w[0]), "hidden")
        return x + jnp.tanh(hidden @ w[1]), None

    step = jax.value_and_grad(lambda w, x: (jax.lax.scan(named, x, w)[0] ** 2).mean())
    traced = trace_step(step, *LARGE)
    problem = Problem(graph=traced.graph, rates=Target("h200").rates)
    hidden = next(v for v in problem.read_after_forward if traced.graph.values[v].name == "hidden")
    kept = TilingSolver(traced, OptimalSolver(replace(problem, required={hidden: Save()})))
    there = kept._solvers[0].problem
    copies = [v for v, decision in there.required.items() if decision == Save()]
    assert {there.graph.loops[there.graph.ops[there.graph.producer[v]].loop].is_clone for v in copies} >= {True}
    plan = kept._solvers[0].min_memory_plan
    assert Save() in plan.decisions.values()
    sent = TilingSolver(traced, OptimalSolver(replace(problem, required={hidden: Offload()})))
    assert not sent.loop_tilings
    assert not sent.min_memory_plans


def test_loops_with_small_carries_are_not_tiled():
    def loss(w, x):
        sums, _ = jax.lax.scan(lambda s, w: (s + jnp.tanh(x @ w[0]).mean(), None), jnp.float32(0), w)
        return sums

    assert not solver_of(jax.value_and_grad(loss), *LARGE).loop_tilings


@pytest.fixture(scope="module")
def small_plan():
    """A plan of nested loops for a step that runs here."""
    args = small_arguments(12)
    planner = Planner(STEP, *args, target="cpu", donate_argnums=(0,))
    (plan,) = planner.tiling_solver.min_memory_plans
    return args, planner, plan


def test_a_plan_of_tiled_loops_is_applied_bit_by_bit(small_plan):
    args, planner, plan = small_plan
    assert Recompute() in plan.decisions.values()
    rewritten = open_jaxpr(rewrite(planner.traced, plan).jaxpr)
    assert [eqn.params["length"] for eqn in rewritten.eqns if eqn.primitive.name == "scan"] == [4, 4]
    assert_applied(planner, plan, args)
    held = held_by(planner, plan)
    copies = jax.tree.map(jnp.copy, args)
    found = jax.jit(held.apply(STEP), donate_argnums=(0,))(*copies)
    for one, other in zip(jax.tree.leaves(STEP(*args)), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_a_plan_of_tiled_loops_is_saved_loaded_and_shown(small_plan, tmp_path):
    _, planner, plan = small_plan
    assert plan.loop_tilings == (LoopTiling(loop=0, outer=4, inner=3),)
    assert_saved_loaded_and_shown(planner, plan, tmp_path, shown=("loop 0 tiled", "4 x 3 iterations"), loop_tilings=())


def test_a_plan_of_tiled_loops_is_refused_by_another_step(small_plan):
    args, planner, plan = small_plan
    wrong = (LoopTiling(loop=0, outer=5, inner=2),)
    assert_refused(planner, plan, args, "cannot be tiled like that", loop_tilings=wrong)


def smallest_untiled(planner):
    """The plan of the smallest compiled total among those of least predicted memory that tile no loop."""
    return min(planner.measure_all(planner.solver.min_memory_plans), key=lambda c: c.footprint.total_bytes)


@pytest.fixture(scope="module")
def planner(no_local_search):
    """The planner of the large step, which its tests share with all that was compiled and solved."""
    return Planner(STEP, *LARGE, target="h200")


@needs_compiler
def test_a_budget_below_all_other_plans_is_met_by_tiled_loops(planner):
    whole, least = least_untiled(planner), planner.smallest()
    assert least.plan.loop_tilings
    assert least.footprint.total_bytes < 0.75 * whole.footprint.total_bytes
    assert planner.floor().total_bytes == least.footprint.total_bytes
    plan = planner.plan(budget=(whole.footprint.total_bytes + least.footprint.total_bytes) // 2)
    assert plan.loop_tilings
    assert plan.budget_bytes >= plan.footprint.total_bytes
    assert len(plan.attempts) <= planner.options.max_compiles
    assert any("nested" in note for note in plan.notes)
    assert not planner.plan(budget=whole.footprint.total_bytes).loop_tilings
    with pytest.raises(InfeasibleBudgetError) as refused:
        planner.plan(budget=least.footprint.total_bytes - 2**20)
    assert refused.value.minimum_bytes == least.footprint.total_bytes


def test_a_frontier_goes_on_with_tiled_loops_below_all_others(planner):
    planner = not_compiled(planner, FakePlanner)
    frontier = frontier_of(planner, points=5)
    assert_monotone(frontier)
    whole = [not point.plan.loop_tilings for point in frontier]
    assert whole == sorted(whole) and {*whole} == {True, False}
    assert frontier.smallest.total_bytes == planner.smallest().footprint.total_bytes
    assert frontier.smallest.total_bytes < least_untiled(planner).footprint.total_bytes
    below = [each for each in frontier.between if each.total_bytes < frontier.points[whole.count(False)].total_bytes]
    assert below


@pytest.mark.parametrize("loop_tilings", [True, False])
def test_the_largest_batch_is_one_of_tiled_loops(monkeypatch, loop_tilings):
    def make_step(batch):
        return STEP, arguments(LENGTH, 256, batch, jnp.bfloat16)

    monkeypatch.setattr(batch_search, "Planner", FakePlanner)
    if not loop_tilings:
        monkeypatch.setattr(FakePlanner, "tiling_solver", None)
    found = jaxckpt.max_batch(make_step, target="h200", budget="256MiB", multiples_of=512)
    assert bool(found.largest.plan.loop_tilings) is loop_tilings
    assert found.largest.plan.footprint.total_bytes <= found.budget_bytes
    planner = FakePlanner(STEP, *make_step(found.batch)[1], target="h200")
    whole_bytes = least_untiled(planner).footprint.total_bytes
    assert (whole_bytes > found.budget_bytes) is loop_tilings
    following = FakePlanner(STEP, *make_step(found.batch + 512)[1], target="h200")
    least = least_untiled(following) if not loop_tilings else following.smallest()
    assert least.footprint.total_bytes > found.budget_bytes


@needs_compiler
def test_tiled_loops_take_no_more_than_checkpoints_by_hand(made, planner):
    def by_hand(w, x):
        def group(x, w):
            return jax.lax.scan(jax.checkpoint(block), x, w)

        w = w.reshape(6, 6, *w.shape[1:])
        return (jax.lax.scan(jax.checkpoint(group), x, w)[0] ** 2).mean()

    marked = jaxckpt.footprint(jax.value_and_grad(by_hand), *LARGE, target="h200")
    (plan,) = made.min_memory_plans
    found = planner.measure(plan).footprint
    assert found.total_bytes <= 1.01 * marked.total_bytes
    assert found.step_s <= 1.01 * marked.step_s
    assert plan.predicted.total_bytes == pytest.approx(found.total_bytes, rel=0.07)
