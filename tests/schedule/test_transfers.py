"""Stores and loads: when they start and end, and that every reader after the forward reads a loaded instance."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from jaxckpt.ir import GraphPlan, Loop, Offload, Phase, Recompute, Save
from jaxckpt.schedule import Barrier, Move, Run, schedule
from jaxckpt.schedule.prefetch import is_pipelined
from jaxckpt.schedule.validate import reason_not_offloadable
from tests.graphs import Builder, chain, graphs
from tests.schedule.as_text import as_text
from tests.schedule.test_schedule import check_order, droppable


def plan_of(graph, decisions, stages):
    return GraphPlan(fingerprint=graph.fingerprint, decisions=decisions, stages=tuple(stages))


def test_a_store_ends_a_stage_later_a_load_starts_a_stage_ahead():
    graph = chain(4)  # values: 0 the input, 1-4 the products; 5-7 cotangents
    offload = Offload(prefetch=1)
    steps = as_text(schedule(graph, plan_of(graph, {1: offload, 2: offload, 3: offload}, stages=[0, 1, 2, 3])))
    assert steps == [
        "0", "pin [1]", "store 1", "1", "pin [2]", "store 2", "barrier [2, 1]", "2",
        "pin [3]", "store 3", "barrier [3, 2]", "3", "4", "barrier [3, 5] after 5", "load 3",
        "barrier [2] after 5", "load 2", "5", "barrier [1, 6] after 6", "load 1", "6", "7",
    ]  # fmt: skip


def test_stores_that_end_at_one_place_end_in_the_order_of_their_values():
    graph = chain(4)
    distances = {1: Offload(prefetch=1, leave=1), 2: Offload(prefetch=1, leave=0)}
    steps = as_text(schedule(graph, plan_of(graph, {2: distances[2], 1: distances[1]}, stages=[0, 1, 2, 3])))
    at = steps.index("barrier [2, 1]")
    assert steps[at : at + 3] == ["barrier [2, 1]", "barrier [2, 2]", "2"]


def test_without_prefetch_a_value_is_loaded_for_its_own_stage():
    graph = chain(4)
    decisions = dict.fromkeys((1, 2, 3), Offload(prefetch=0))
    steps = as_text(schedule(graph, plan_of(graph, decisions, stages=[0, 1, 2, 3])))
    assert [line for line in steps if line.startswith("load")] == ["load 3", "load 2", "load 1"]
    assert "barrier [1, 1]" in steps


def test_distances_count_layers_and_stores_have_their_own():
    graph = chain(4)
    decisions = {1: Offload(prefetch=0, leave=1), 2: Recompute(), 3: Recompute()}
    plan = GraphPlan(fingerprint=graph.fingerprint, decisions=decisions, stages=(0,), layers=(0, 1, 2, 3, 4))
    steps = as_text(schedule(graph, plan))
    assert steps.index("store 1") < steps.index("barrier [2, 1]") < steps.index("2")
    assert steps.index("load 1") < steps.index("1*")  # one stage asks for all of it at once


def test_a_load_waits_for_results_of_the_backward():
    graph = chain(4)
    decisions = dict.fromkeys((1, 2, 3), Offload(prefetch=0))
    steps = as_text(schedule(graph, plan_of(graph, decisions, stages=[0, 1, 2, 3])))
    barriers = [before for before, step in pairwise(steps) if step.startswith("load")]
    assert barriers == ["barrier [3, 5] after 5", "barrier [2, 6] after 6", "barrier [1, 7] after 7"]


def test_every_barrier_holds_the_instance_that_the_backward_reads_on():
    """XLA drops operands of a barrier that nobody reads behind it: a second load would begin in the forward pass."""
    graph = chain(4)
    decisions = dict.fromkeys((1, 2, 3), Offload(prefetch=3))
    laid_out = schedule(graph, plan_of(graph, decisions, stages=[0, 1, 2, 3]))
    triggers = [step.trigger for step in laid_out.steps if isinstance(step, Barrier) and step.trigger is not None]
    assert {laid_out.origin[trigger] for trigger in triggers} == {5}
    read = {i for step in laid_out.steps if isinstance(step, Run) for i in step.reads}
    assert triggers[-1] in read


def test_loads_wait_for_a_frontier_that_is_a_cast_and_pass_gradients_before_their_casts():
    """Two loads before the reader of a wide cotangent that is not in memory, and a gradient that is widened."""
    build = Builder()
    x, weight = build.input(4000), build.input(4000)
    first = build.op("dot_general", x, size_bytes=4000)
    second = build.op("dot_general", first, size_bytes=4000)
    end = build.op("dot_general", second, size_bytes=4000)
    product = build.op("dot_general", end, size_bytes=2000, phase=Phase.BACKWARD)
    half = build.op("dot_general", product, end, size_bytes=1000, phase=Phase.BACKWARD)
    gradient = build.op("convert_element_type", half, size_bytes=2000, phase=Phase.BACKWARD)
    narrow = build.op("add_any", product, build.input(2000), size_bytes=2000, phase=Phase.BACKWARD)
    cast = build.op("convert_element_type", narrow, size_bytes=4000, phase=Phase.BACKWARD)
    scaled = build.op("mul", cast, second, first, size_bytes=4000, phase=Phase.BACKWARD)
    last = build.op("dot_general", scaled, x, size_bytes=4000, phase=Phase.BACKWARD)
    new = build.op("add", weight, gradient, last, size_bytes=4000, phase=Phase.UPDATE)
    graph = build.graph(new)
    offload = Offload(prefetch=0)
    decisions = {first: offload, second: offload, end: Save()}
    laid_out = schedule(graph, plan_of(graph, decisions, stages=[0, graph.producer[end]]))
    check_order(graph, laid_out)
    loads = [step for step in laid_out.steps if isinstance(step, Barrier) and step.why == "load"]
    passed = [[laid_out.origin[i] for i in step.reads] for step in loads]
    assert passed == [[second, half, narrow], [first, narrow]]
    assert {step.trigger for step in loads} == {None}
    written = {i: step for step in laid_out.steps for i in step.writes}
    reader = next(step for step in laid_out.steps if isinstance(step, Run) and scaled in step.writes)
    update = next(step for step in laid_out.steps if isinstance(step, Run) and new in step.writes)
    assert written[reader.reads[0]].reads == loads[1].writes[-1:]
    assert written[update.reads[1]].reads == loads[0].writes[1:2]


def trained(*, clips: bool):
    """Two products; behind their gradients new weights, with the sum of all gradients in both if it clips."""
    build = Builder()
    x, *weights = (build.input(4000) for _ in range(3))
    hidden = build.op("dot_general", x, weights[0], size_bytes=4000)
    end = build.op("dot_general", hidden, weights[1], size_bytes=4000)
    cotangent = build.op("dot_general", end, weights[1], size_bytes=4000, phase=Phase.BACKWARD)
    last = build.op("dot_general", end, end, size_bytes=4000, phase=Phase.BACKWARD)
    other = build.op("dot_general", cotangent, hidden, size_bytes=4000, phase=Phase.BACKWARD)
    decayed = [build.op("mul", weight, size_bytes=4000, phase=Phase.UPDATE) for weight in weights]
    both = [build.op("add", last, other, size_bytes=4000, phase=Phase.UPDATE)] if clips else []
    new = [
        build.op("add", weight, gradient, *both, size_bytes=4000, phase=Phase.UPDATE)
        for weight, gradient in zip(decayed, (other, last), strict=True)
    ]
    return build.graph(*new, donated=weights), hidden, last, new


def test_an_update_runs_before_a_load_and_its_result_passes_in_place_of_the_gradient():
    graph, hidden, last, (new_first, new_last) = trained(clips=False)
    laid_out = schedule(graph, plan_of(graph, {hidden: Offload(prefetch=0)}, stages=[0]))
    steps = as_text(laid_out)
    decays, updates = graph.producer[new_last] - 2, graph.producer[new_last]
    assert steps.index(str(decays)) < steps.index(str(updates)) < steps.index(f"load {hidden}")
    (passed,) = [s.reads for s in laid_out.steps if isinstance(s, Barrier) and s.why == "load"]
    assert new_last in passed
    assert last not in passed
    assert steps.index(f"load {hidden}") < steps.index(str(graph.producer[new_first]))
    assert sorted(step.op for step in laid_out.steps if isinstance(step, Run)) == [op.id for op in graph.ops]


@pytest.mark.parametrize("offloads", [True, False])
def test_where_values_are_on_the_host_results_of_the_backward_pass_the_barriers_of_stages_too(offloads):
    """XLA's scheduler that hides copies would postpone products of gradients, and keep what they read."""
    build = Builder()
    x, weight = build.input(4000), build.input(4000)
    copied = build.op("dot_general", x, x, size_bytes=4000)
    kept = build.op("dot_general", copied, weight, size_bytes=4000)
    dropped = build.op("tanh", kept, size_bytes=4000)
    end = build.op("dot_general", dropped, weight, size_bytes=4000)
    cotangent = build.op("dot_general", end, weight, size_bytes=4000, phase=Phase.BACKWARD)
    gradient = build.op("dot_general", cotangent, cotangent, size_bytes=4000, phase=Phase.BACKWARD)
    behind = build.op("mul", cotangent, dropped, size_bytes=4000, phase=Phase.BACKWARD)
    last = build.op("dot_general", behind, copied, size_bytes=4000, phase=Phase.BACKWARD)
    graph = build.graph(gradient, last)
    decisions = {copied: Offload(prefetch=0) if offloads else Save(), kept: Save(), dropped: Recompute(), end: Save()}
    laid_out = schedule(graph, plan_of(graph, decisions, stages=[0, graph.producer[kept]]))
    (passed,) = [s.reads for s in laid_out.steps if isinstance(s, Barrier) and s.why == "recompute"]
    assert (gradient in passed) is offloads
    check_order(graph, laid_out)


def test_an_update_that_needs_all_gradients_waits_for_the_last_one():
    graph, hidden, last, new = trained(clips=True)
    laid_out = schedule(graph, plan_of(graph, {hidden: Offload(prefetch=0)}, stages=[0]))
    steps = as_text(laid_out)
    assert all(steps.index(f"load {hidden}") < steps.index(str(graph.producer[v])) for v in new)
    (passed,) = [s.reads for s in laid_out.steps if isinstance(s, Barrier) and s.why == "load"]
    assert last in passed


@st.composite
def offloaded(draw):
    graph = draw(graphs())
    decision = st.sampled_from([None, Recompute(), Offload(prefetch=0), Offload(prefetch=2)])
    choices = {v: draw(decision) for v in droppable(graph)}
    forward = [op.id for op in graph.ops if op.phase is Phase.FORWARD]
    stages = sorted({0, *draw(st.lists(st.sampled_from(forward), max_size=4))})
    return graph, plan_of(graph, {v: d for v, d in choices.items() if d is not None}, stages)


@given(offloaded())
def test_ops_after_forward_read_only_loaded_instances(planned):
    graph, plan = planned
    laid_out = schedule(graph, plan)
    away = {v for v, d in plan.decisions.items() if isinstance(d, Offload)}
    back = {step.writes[0] for step in laid_out.steps if isinstance(step, Move) and step.restores}
    behind = set(back)
    for step in laid_out.steps:
        if isinstance(step, Barrier):
            behind.update(w for r, w in zip(step.reads, step.writes, strict=True) if r in behind)
        late = isinstance(step, Run) and (step.is_clone or graph.ops[step.op].phase is not Phase.FORWARD)
        if late:
            assert all(i in behind for i in step.reads if laid_out.origin[i] in away)


@given(offloaded())
def test_every_instance_is_written_once_and_before_it_is_read(planned):
    graph, plan = planned
    laid_out = schedule(graph, plan)
    known = {*graph.inputs, *graph.constants}
    for step in laid_out.steps:
        trigger = (step.trigger,) if isinstance(step, Barrier) and step.trigger is not None else ()
        assert known.issuperset((*step.reads, *trigger))
        assert known.isdisjoint(step.writes)
        known.update(step.writes)
    assert known.issuperset(laid_out.outputs)


@given(offloaded())
def test_a_value_is_stored_once_and_loaded_at_most_once(planned):
    graph, plan = planned
    laid_out = schedule(graph, plan)
    moves = [(laid_out.origin[step.reads[0]], step.restores) for step in laid_out.steps if isinstance(step, Move)]
    out = [value for value, comes_back in moves if not comes_back]
    back = [value for value, comes_back in moves if comes_back]
    assert len(out) == len(set(out))
    assert len(back) == len(set(back))
    assert set(back) <= set(out)


### In the bodies of loops


def looped(*, turns=(5, 5), reverse=True, parents=(None, None), unroll=1):
    """A chain whose forward ops are the body of one loop (2), and its backward that of another (3)."""
    graph = chain(4)
    loops = (
        Loop(id=0, length=3, reverse=False),
        Loop(id=1, length=3, reverse=True),
        Loop(id=2, length=turns[0], reverse=False, parent=parents[0], unroll=unroll),
        Loop(id=3, length=turns[1], reverse=reverse, parent=parents[1]),
    )
    ops = tuple(replace(op, loop=3 if op.phase is Phase.BACKWARD else 2) for op in graph.ops)
    return replace(graph, ops=ops, loops=loops)


def test_each_iteration_moves_its_own_value_without_barriers():
    graph = looped()
    laid_out = schedule(graph, plan_of(graph, {2: Offload(prefetch=0)}, stages=[0]))
    assert [line for line in as_text(laid_out) if not line[0].isdigit()] == ["store 2", "load 2"]
    moves = [step for step in laid_out.steps if isinstance(step, Move)]
    assert [(move.loop, move.is_pipelined) for move in moves] == [(2, False), (3, False)]


def test_pipelined_copies_need_a_sibling_loop_in_reverse():
    ahead = Offload(prefetch=1)
    assert is_pipelined(looped(), 2, ahead)
    for decision in (Offload(prefetch=0), Offload(), Save()):
        assert not is_pipelined(looped(), 2, decision)
    assert not is_pipelined(looped(reverse=False), 2, ahead)
    assert not is_pipelined(looped(turns=(5, 4)), 2, ahead)
    assert not is_pipelined(looped(parents=(None, 1)), 2, ahead)
    assert not is_pipelined(chain(4), 2, ahead)


def test_only_one_stack_can_be_on_the_host():
    assert reason_not_offloadable(chain(4), 2) is None
    assert reason_not_offloadable(looped(), 2) is None
    assert "unroll=2" in reason_not_offloadable(looped(unroll=2), 2)
    assert "a loop of one iteration" in reason_not_offloadable(looped(turns=(1, 1)), 2)
    assert "3 x 5 iterations" in reason_not_offloadable(looped(parents=(0, 1)), 2)
    assert reason_not_offloadable(looped(parents=(0, 0)), 2) is None  # the outer body holds the backward too
    assert "in the body of one loop" in reason_not_offloadable(looped(turns=(1, 1), parents=(0, 0)), 2)
