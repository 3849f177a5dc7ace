"""The last turns of a loop decided on differently: budgets are filled, as predicted and as compiled."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxckpt import Planner
from jaxckpt.ir import LoopSplit, Offload
from jaxckpt.machine import Target
from jaxckpt.planner.loop_split import LoopSplitter, MixPoint, PlanFigures
from jaxckpt.program.inline import open_jaxpr
from jaxckpt.rewrite import rewrite
from jaxckpt.rewrite.split_loops import with_split_loops
from jaxckpt.solve import OptimalSolver, Problem
from jaxckpt.solve.problem import decide
from jaxckpt.trace import trace_step
from tests.planner.scanned import (
    STEP,
    arguments,
    assert_applied,
    assert_refused,
    assert_saved_loaded_and_shown,
    held_by,
    make_step,
    small_arguments,
)
from tests.planner.test_planner import needs_compiler

pytestmark = pytest.mark.usefixtures("no_local_search")

LENGTH = 12


LARGE = arguments(LENGTH, 2048, 8192, jnp.bfloat16)


class Made:
    """A step with its solver, and its smallest and fastest plans as if they took what is predicted."""

    def __init__(self, **options):
        self.traced = trace_step(make_step(**options), *LARGE)
        self.problem = Problem(graph=self.traced.graph, rates=Target("h200").rates)
        self.solver = OptimalSolver(self.problem)
        self.loop_splitter = LoopSplitter(self.traced, self.solver)
        self.small, self.large = map(known, (self.solver.min_memory_plan, self.solver.solve(None)))

    @property
    def plans(self):
        """All that the solver knows between the smallest plan and the fastest."""
        few, many = self.small.plan.predicted.temp_bytes, self.large.plan.predicted.temp_bytes
        return {self.solver.solve(few + share * (many - few) // 16) for share in range(1, 17)}

    def filled(self, limit_bytes):
        pair = self.loop_splitter.bracket([self.small, self.large], limit_bytes)
        return None if pair is None else self.loop_splitter.largest_feasible_mix(pair, limit_bytes)


def known(plan):
    return PlanFigures(plan=plan, total_bytes=plan.predicted.total_bytes, step_s=plan.predicted.step_s)


@pytest.fixture(scope="module")
def made():
    return Made()


def scan_lengths(jaxpr):
    return [eqn.params["length"] for eqn in open_jaxpr(jaxpr).eqns if eqn.primitive.name == "scan"]


def halfway(made):
    return (made.small.total_bytes + made.large.total_bytes) // 2


def test_the_mixture_fills_the_budget_to_the_last_iteration(made):
    a_turn = (made.large.total_bytes - made.small.total_bytes) / LENGTH
    limit_bytes = halfway(made)
    turns, plan = made.filled(limit_bytes)
    assert 0 < turns < LENGTH
    assert limit_bytes - 1.5 * a_turn < plan.predicted.total_bytes <= limit_bytes
    assert made.large.step_s < plan.predicted.step_s < made.small.step_s


def test_more_memory_gives_the_larger_plan_more_iterations(made):
    shares = (0.2, 0.4, 0.6, 0.8)
    found = [
        made.filled(int(made.small.total_bytes + s * (made.large.total_bytes - made.small.total_bytes))) for s in shares
    ]
    assert [turns for turns, _ in found] == sorted({turns for turns, _ in found})
    seconds = [plan.predicted.step_s for _, plan in found]
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize("reverse", [False, True])
def test_the_last_iterations_have_the_larger_plan_s_decisions(made, reverse):
    made = Made(reverse=True) if reverse else made
    turns, plan = made.filled(halfway(made))
    (loop_splits,) = plan.loop_splits
    lengths = (turns, LENGTH - turns) if reverse else (LENGTH - turns, turns)
    assert loop_splits == LoopSplit(loop=0, lengths=lengths)
    split = with_split_loops(made.traced, plan.loop_splits)
    small, large = made.small.plan.decisions, made.large.plan.decisions
    seen = set()
    for value, copies in enumerate(split.values):
        if len(copies) == 2:
            first, last = reversed(copies) if reverse else copies
            for copy, theirs in ((first, small), (last, large)):
                if copy in plan.decisions:
                    assert plan.decisions[copy] == theirs[value]
            seen.add(plan.decisions.get(first) != plan.decisions.get(last))
    assert seen == {True, False}
    executed = lengths[::-1] if reverse else lengths
    assert scan_lengths(rewrite(made.traced, plan).jaxpr) == [*executed, *executed[::-1]]


def test_the_last_iterations_are_the_better_ones_to_save_more(made):
    _, plan = made.filled(halfway(made))
    split = with_split_loops(made.traced, plan.loop_splits)
    other = with_split_loops(made.traced, (LoopSplit(loop=0, lengths=plan.loop_splits[0].lengths[::-1]),))
    pairs = [
        pair for one, two in zip(split.values, other.values, strict=True) for pair in zip(one, two[::-1], strict=True)
    ]
    ops = [pair for one, two in zip(split.ops, other.ops, strict=True) for pair in zip(one, two[::-1], strict=True)]
    turned = {there: plan.decisions[here] for here, there in pairs if here in plan.decisions}
    begins = {there for here, there in ops if here in plan.stages}
    problem = replace(made.problem, graph=other.traced.graph)
    first = problem.plan(turned, tuple(sorted(begins)), "optimal")
    assert first.predicted.step_s == pytest.approx(plan.predicted.step_s, rel=1e-3)
    assert plan.predicted.temp_bytes <= first.predicted.temp_bytes


def test_equal_decisions_in_split_loops_are_predicted_alike(made):
    for plan in (made.small.plan, made.large.plan):
        split = with_split_loops(made.traced, (LoopSplit(loop=0, lengths=(5, 7)),))
        copies = {copy: d for value, d in plan.decisions.items() for copy in split.values[value]}
        stages = tuple(sorted(copy for op in plan.stages for copy in split.ops[op]))
        there = replace(made.problem, graph=split.traced.graph).plan(copies, stages, "optimal").predicted
        assert there.temp_bytes == pytest.approx(plan.predicted.temp_bytes, rel=0.01)
        assert there.step_s == pytest.approx(plan.predicted.step_s, rel=0.01)
        assert there.saved_bytes == plan.predicted.saved_bytes


def test_model_errors_of_two_plans_count_for_their_mixtures(made):
    limit_bytes = halfway(made)
    turns, _ = made.filled(limit_bytes)
    more_bytes = (made.large.total_bytes - made.small.total_bytes) // 4
    larger = [replace(each, total_bytes=each.total_bytes + more_bytes) for each in (made.small, made.large)]
    pair = made.loop_splitter.bracket(larger, limit_bytes)
    fewer, plan = made.loop_splitter.largest_feasible_mix(pair, limit_bytes)
    assert fewer < turns
    compiled = PlanFigures(plan=plan, total_bytes=limit_bytes + 1, step_s=plan.predicted.step_s)
    again = made.loop_splitter.largest_feasible_mix(
        pair.narrowed(MixPoint(iterations=fewer, figures=compiled), limit_bytes), limit_bytes
    )
    assert again is None or again[0] < fewer


def test_nothing_is_mixed_where_it_would_not_be_faster(made):
    assert made.loop_splitter.bracket([made.small, made.large], made.large.total_bytes) is None
    assert made.loop_splitter.bracket([made.large], halfway(made)) is None
    slow = [replace(known(plan), step_s=2 * made.small.step_s) for plan in made.plans]
    assert made.loop_splitter.bracket([made.small, *slow], halfway(made)) is None
    away = replace(made.small.plan, decisions=dict.fromkeys(made.small.plan.decisions, Offload()))
    assert made.loop_splitter.bracket([replace(made.small, plan=away), made.large], halfway(made)) is None


def test_a_step_without_loops_has_nothing_to_mix():
    traced = trace_step(jax.grad(lambda w, x: (jnp.tanh(x @ w) ** 2).sum()), jnp.eye(4), jnp.ones((2, 4)))
    problem = Problem(graph=traced.graph, rates=Target("h200").rates)
    assert LoopSplitter(traced, OptimalSolver(problem)).iterations == 0


@pytest.fixture(scope="module")
def small_plan():
    """A mixture for a step that runs here."""
    args = small_arguments(LENGTH)
    planner = Planner(STEP, *args, target="cpu")
    problem = planner.problem
    everything = decide(problem, problem.read_after_forward & problem.worth_saving, (0,), "optimal")
    small, large = known(planner.solver.min_memory_plan), known(everything)
    large = replace(large, step_s=small.step_s / 2)
    splitter = planner.loop_splitter(planner.solver)
    pair = splitter.bracket([small, large], (small.total_bytes + large.total_bytes) // 2)
    _, plan = splitter.largest_feasible_mix(pair, large.total_bytes - 1)
    return args, planner, plan


def test_a_mixture_is_applied_with_the_step_s_bits(small_plan):
    args, planner, plan = small_plan
    assert plan.loop_splits
    assert_applied(planner, plan, args)
    held = held_by(planner, plan)
    for one, other in zip(jax.tree.leaves(STEP(*args)), jax.tree.leaves(held.apply(STEP)(*args)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_a_mixture_is_saved_loaded_and_shown(small_plan, tmp_path):
    _, planner, plan = small_plan
    first, last = plan.loop_splits[0].lengths
    assert_saved_loaded_and_shown(planner, plan, tmp_path, shown=(f"{first} + {last} iterations",), loop_splits=())


def test_a_mixture_is_refused_by_another_step_or_trip_count(small_plan):
    args, planner, plan = small_plan
    wrong = (LoopSplit(loop=0, lengths=(1, 1)),)
    assert_refused(planner, plan, args, "cannot be split like that", loop_splits=wrong)


@pytest.fixture(scope="module")
def planner(no_local_search):
    """The planner of the large step, which its tests share with all that was compiled."""
    return Planner(STEP, *LARGE, target="h200")


@needs_compiler
def test_a_budget_between_two_plans_is_filled_as_compiled(planner):
    small, large = (planner.measure(plan) for plan in (planner.solver.min_memory_plan, planner.solver.solve(None)))
    assert planner.step_s_with_stalls(large) < planner.step_s_with_stalls(small)
    limit_bytes = (3 * small.footprint.total_bytes + large.footprint.total_bytes) // 4
    plan = planner.plan(budget=limit_bytes)
    assert plan.loop_splits
    assert len(plan.attempts) <= planner.options.max_compiles
    assert plan.footprint.total_bytes <= limit_bytes
    uniform = [c for c in planner.compiled_plans() if not c.plan.loop_splits and c.footprint.total_bytes <= limit_bytes]
    assert all(planner.step_s_with_stalls(each) > plan.footprint.step_s for each in uniform)
    assert max(each.footprint.total_bytes for each in uniform) < plan.footprint.total_bytes


@needs_compiler
def test_equal_decisions_in_split_loops_compile_alike(made, planner):
    whole = planner.measure(made.large.plan).footprint
    split = with_split_loops(made.traced, loop_splits := (LoopSplit(loop=0, lengths=(5, 7)),))
    copies = {copy: d for value, d in made.large.plan.decisions.items() for copy in split.values[value]}
    stages = tuple(sorted(copy for op in made.large.plan.stages for copy in split.ops[op]))
    there = planner.measure(
        replace(made.large.plan, decisions=copies, stages=stages, loop_splits=loop_splits)
    ).footprint
    assert there.temp_bytes == pytest.approx(whole.temp_bytes, rel=0.02)
    assert there.step_s == pytest.approx(whole.step_s, rel=0.02)
