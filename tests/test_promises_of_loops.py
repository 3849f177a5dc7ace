"""The promises where a step is made of loops: any decision gives the same bits, run operation by operation."""

from dataclasses import replace

import jax
import numpy as np
from hypothesis import given, settings, strategies as st

from jaxckpt.ir import GraphPlan, LoopSplit, LoopTiling, Offload, Phase, Recompute, Save
from jaxckpt.rewrite import rewrite
from jaxckpt.rewrite.split_loops import loops_split_together, with_split_loops
from jaxckpt.rewrite.tile_loops import tileable_loops, with_tiled_loops
from jaxckpt.schedule.validate import reason_not_offloadable
from jaxckpt.solve import OptimalSolver, Problem, solve
from jaxckpt.solve.effort import Effort
from jaxckpt.trace import trace_step
from jaxckpt.verifier.interpret import run_one_by_one
from tests.graphs import RATES
from tests.looped import Looped, Scan, build, looped
from tests.residuals import residuals

EXAMPLES = settings(max_examples=8)
FEW = settings(max_examples=3)
"""Where each example is solved for its least memory, which takes seconds."""


def assert_same_bits(step, args, traced, plan):
    flat = jax.tree.leaves(args)
    expected = run_one_by_one(jax.make_jaxpr(step)(*args), *flat)
    found = run_one_by_one(rewrite(traced, plan).jaxpr, *flat)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@EXAMPLES
@given(looped, st.data())
def test_any_decisions_on_any_stages_of_loops_give_the_same_bits(made, data):
    step, args = build(made)
    traced = trace_step(step, *args)
    traced.graph.validate()
    assert traced.graph.loops
    plan = draw_plan(data, traced.graph)
    assert_same_bits(step, args, traced, plan)


@EXAMPLES
@given(looped, st.data())
def test_any_decisions_in_any_stretches_of_loops_give_the_same_bits(made, data):
    step, args = build(made)
    traced = trace_step(step, *args)
    loop_splits = []
    for loops in loops_split_together(traced):
        outer = [each.loop for each in loop_splits]
        inside = any(around in outer for loop in loops for around in traced.graph.path(loop)[:-1])
        lengths = data.draw(st.sampled_from(list(compositions(traced.graph.loops[loops[0]].length))))
        if not inside and len(lengths) > 1:
            loop_splits.append(LoopSplit(loop=loops[0], lengths=lengths))
    split = with_split_loops(traced, loop_splits).traced
    split.graph.validate()
    assert len(split.graph.loops) > len(traced.graph.loops) or not loop_splits
    plan = draw_plan(data, split.graph)
    plan = replace(plan, fingerprint=traced.graph.fingerprint, loop_splits=tuple(loop_splits))
    assert_same_bits(step, args, traced, plan)


@EXAMPLES
@given(looped, st.data())
def test_any_decisions_in_any_nested_loops_give_the_same_bits(made, data):
    turns = st.sampled_from([4, 6])
    step, args = build(replace(made, scans=tuple(replace(scan, turns=data.draw(turns)) for scan in made.scans)))
    traced = trace_step(step, *args)
    loop_tilings = []
    for loops in tileable_loops(traced):
        length = traced.graph.loops[loops[0]].length
        inner = data.draw(st.sampled_from([1, *(i for i in range(2, length) if length % i == 0)]))
        around = {around for loop in loops for around in traced.graph.path(loop)}
        if inner > 1 and around.isdisjoint(each.loop for each in loop_tilings):
            loop_tilings.append(LoopTiling(loop=loops[0], outer=length // inner, inner=inner))
    there = with_tiled_loops(traced, loop_tilings).traced
    there.graph.validate()
    plan = draw_plan(data, there.graph)
    plan = replace(plan, fingerprint=traced.graph.fingerprint, loop_tilings=tuple(loop_tilings))
    assert_same_bits(step, args, traced, plan)


def compositions(length):
    """All ways to write a number as a sum of positive ones."""
    if not length:
        yield ()
    for first in range(1, length + 1):
        for rest in compositions(length - first):
            yield (first, *rest)


def draw_plan(data, graph):
    decisions = {}
    for residual in residuals(graph):
        choices = [None, Save()] if graph.ops[residual.op].effects else [None, Save(), Recompute(), Recompute()]
        if reason_not_offloadable(graph, residual.value) is None:
            choices += [Offload(prefetch=0), Offload(prefetch=1)]
        decision = data.draw(st.sampled_from(choices))
        if decision is not None:
            decisions[residual.value] = decision
    stages = tuple(sorted({0, *data.draw(st.lists(st.integers(0, len(graph.ops) - 1), max_size=3))}))
    return GraphPlan(fingerprint=graph.fingerprint, decisions=decisions, stages=stages)


@FEW
@given(looped, st.floats(0.1, 1.0))
def test_plans_of_solvers_for_loops_give_the_same_bits(made, share):
    step, args = build(made)
    traced = trace_step(step, *args)
    # A tenth of the usual local search changes plans too, and more of it takes most of the time of this test.
    solver = OptimalSolver(Problem(graph=traced.graph, rates=RATES, effort=Effort(op_runs=6_000)))
    budget_bytes = int(solver.empty_plan.predicted.temp_bytes * share)
    plan = solver.solve(budget_bytes, allow_empty=False)
    assert plan.predicted.temp_bytes <= max(budget_bytes, solver.min_memory_plan.predicted.temp_bytes)
    assert_same_bits(step, args, traced, plan)


def test_recomputed_loops_in_loops_and_of_gradients_are_exact():
    body = ("residual", "mask", "dense", "weight")
    made = Looped(scans=(Scan(body=body, inner=2, remat=True, stacks=True), Scan(body=body, reverse=True)), batches=2)
    step, args = build(made)
    traced = trace_step(step, *args)
    plan = solve(Problem(graph=traced.graph, rates=RATES), "full")
    again = [step for step in rewrite(traced, plan).schedule.steps if getattr(step, "is_clone", False)]
    assert {traced.graph.ops[step.op].phase for step in again} == {Phase.FORWARD}
    assert len({step.loop for step in again}) >= 3
    assert_same_bits(step, args, traced, plan)
