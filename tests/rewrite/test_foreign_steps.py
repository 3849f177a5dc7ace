"""Random plans on every step of the zoo: well-formed, well-typed, the same results, effects once."""

import random
import zlib

import jax
import numpy as np
import pytest

from jaxckpt.ir import GraphPlan, Phase, Recompute, Save
from jaxckpt.rewrite import apply, rewrite
from jaxckpt.schedule import Run
from jaxckpt.trace import trace_step
from tests.rewrite.plans import droppable
from tests.schedule.test_schedule import check_order
from tests.trace.test_foreign_steps import PLANNED, expected, flat_arguments, tolerance, traced_case
from tests.zoo.case import as_numpy, quick_jit

pytestmark = pytest.mark.slow  # every step is compiled; `make slow` runs them

ALONE = {"lstm", "random_forward", "keys_in_state", "flash_attention", "ordered_callback", "remat_nested_scan"}
"""Steps small enough to be run an equation at a time, each compiled by itself: random bits, loops, effects."""


def random_plan(graph, seed):
    draw = random.Random(zlib.crc32(seed.encode()))
    choices = {v: draw.choice([None, Save(), Recompute(), Recompute()]) for v in droppable(graph)}
    forward = [op.id for op in graph.ops if op.phase is Phase.FORWARD]
    stages = {0, *draw.sample(forward, min(3, len(forward)))}
    decisions = {v: d for v, d in choices.items() if d is not None}
    return GraphPlan(fingerprint=graph.fingerprint, decisions=decisions, stages=tuple(sorted(stages)))


@pytest.mark.parametrize("entry", PLANNED, ids=str)
def test_any_plan_gives_a_well_formed_step(entry):
    _, traced = traced_case(entry)
    for attempt in "abc":
        plan = random_plan(traced.graph, entry.name + attempt)
        rewritten = rewrite(traced, plan)
        check_order(traced.graph, rewritten.schedule)
        again = [step.op for step in rewritten.schedule.steps if isinstance(step, Run) and step.is_clone]
        assert bool(again) == any(isinstance(d, Recompute) for d in plan.decisions.values())
        assert not any(traced.graph.ops[op].effects for op in again)


@pytest.mark.parametrize("entry", PLANNED, ids=str)
def test_planned_steps_give_the_step_s_results(entry):
    case, traced = traced_case(entry)
    plan = random_plan(traced.graph, entry.name)
    planned = apply(case.step, plan, static_argnums=case.static_argnums)

    def flat_planned(*flat):
        dynamic = [arg for i, arg in enumerate(case.args) if i not in traced.static]
        traced_args = iter(jax.tree.unflatten(jax.tree.structure(dynamic), flat))
        return planned(*(arg if i in traced.static else next(traced_args) for i, arg in enumerate(case.args)))

    ours = jax.tree.leaves(quick_jit(flat_planned)(*flat_arguments(case, traced)))
    jax.effects_barrier()
    for mine, theirs in zip(map(as_numpy, ours), expected(entry), strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, **tolerance(entry, mine.dtype))


@pytest.mark.parametrize("entry", [e for e in PLANNED if e.name in ALONE], ids=str)
def test_copies_agree_to_the_bit_where_each_equation_runs_alone(entry):
    case, traced = traced_case(entry)
    rewritten = rewrite(traced, random_plan(traced.graph, entry.name))
    results = [
        jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *flat_arguments(case, traced))
        for closed in (rewritten.jaxpr, traced.jaxpr)
    ]
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(as_numpy(mine), as_numpy(theirs))


@pytest.mark.parametrize("entry", [e for e in PLANNED if "callback" in e.traits], ids=str)
def test_the_host_is_called_as_often_as_by_the_step(entry):
    _, traced = traced_case(entry)
    rewritten = rewrite(traced, random_plan(traced.graph, entry.name))
    calls = [
        str(closed).count("callback[") + str(closed).count("debug_print[") for closed in (rewritten.jaxpr, traced.jaxpr)
    ]
    assert calls[0] == calls[1] > 0


def test_planned_steps_trace_to_graphs_again():
    """A planned step is a step: it can be traced, and its copies are not taken for a user's checkpoint."""
    entry = next(e for e in PLANNED if e.name == "plain_transformer")
    case, traced = traced_case(entry)
    plan = random_plan(traced.graph, entry.name)
    again = trace_step(apply(case.step, plan), *case.args)
    again.graph.validate()
    copies = sum(isinstance(step, Run) and step.is_clone for step in rewrite(traced, plan).schedule.steps)
    assert len(again.graph.ops) > len(traced.graph.ops) + copies // 2
