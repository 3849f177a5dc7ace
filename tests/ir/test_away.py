"""Values that wait elsewhere: when they leave, when they come back, and that nobody reads what is gone."""

from hypothesis import given
from hypothesis import strategies as st

from jaxckpt.ir import Barrier, Move, Offload, Phase, Plan, Recompute, Run, schedule
from tests.graphs import chain, graphs
from tests.ir.test_schedule import droppable


def plan_of(graph, decisions, stages):
    return Plan(fingerprint=graph.fingerprint, decisions=decisions, stages=tuple(stages))


def told(laid_out):
    """Op numbers; "out" and "back" with the value that moves; what barriers hold."""
    lines = []
    for step in laid_out.steps:
        origin = [laid_out.origin[i] for i in step.reads]
        match step:
            case Run():
                lines.append(f"{step.op}{'*' if step.again else ''}")
            case Move():
                lines.append(f"{'back' if step.back else 'out'} {origin[0]}")
            case Barrier():
                lines.append(f"{step.why} {origin}")
    return lines


def test_a_value_has_left_a_stage_later_and_comes_back_a_stage_ahead():
    graph = chain(4)  # values: 0 the input, 1-4 the products; 5-7 cotangents
    offload = Offload(prefetch=1)
    steps = told(schedule(graph, plan_of(graph, {1: offload, 2: offload, 3: offload}, stages=[0, 1, 2, 3])))
    assert steps == [
        "0", "pin [1]", "out 1", "1", "pin [2]", "out 2", "leave [2, 1]", "2", "pin [3]", "out 3", "leave [3, 2]", "3",
        "4", "fetch [3, 5]", "back 3", "fetch [2]", "back 2", "5", "fetch [1, 6]", "back 1", "6", "7",
    ]  # fmt: skip


def test_without_prefetch_a_value_comes_back_for_its_own_stage():
    graph = chain(4)
    decisions = dict.fromkeys((1, 2, 3), Offload(prefetch=0))
    steps = told(schedule(graph, plan_of(graph, decisions, stages=[0, 1, 2, 3])))
    assert [line for line in steps if line.startswith("back")] == ["back 3", "back 2", "back 1"]
    assert "leave [1, 1]" in steps


def test_layers_are_counted_where_a_plan_has_them_and_the_way_out_by_itself():
    graph = chain(4)
    decisions = {1: Offload(prefetch=0, leave=1), 2: Recompute(), 3: Recompute()}
    plan = Plan(fingerprint=graph.fingerprint, decisions=decisions, stages=(0,), layers=(0, 1, 2, 3, 4))
    steps = told(schedule(graph, plan))
    assert steps.index("out 1") < steps.index("leave [2, 1]") < steps.index("2")
    assert steps.index("back 1") < steps.index("1*")  # one stage asks for all of it at once


def test_results_of_the_backward_are_finished_before_the_next_value_comes_back():
    graph = chain(4)
    decisions = dict.fromkeys((1, 2, 3), Offload(prefetch=0))
    steps = told(schedule(graph, plan_of(graph, decisions, stages=[0, 1, 2, 3])))
    assert [line for line in steps if "fetch" in line] == ["fetch [3, 5]", "fetch [2, 6]", "fetch [1, 7]"]


@st.composite
def offloaded(draw):
    graph = draw(graphs())
    decision = st.sampled_from([None, Recompute(), Offload(prefetch=0), Offload(prefetch=2)])
    choices = {v: draw(decision) for v in droppable(graph)}
    forward = [op.id for op in graph.ops if op.phase is Phase.FORWARD]
    stages = sorted({0, *draw(st.lists(st.sampled_from(forward), max_size=4))})
    return graph, plan_of(graph, {v: d for v, d in choices.items() if d is not None}, stages)


@given(offloaded())
def test_late_ops_read_only_what_came_back(planned):
    graph, plan = planned
    laid_out = schedule(graph, plan)
    away = {v for v, d in plan.decisions.items() if isinstance(d, Offload)}
    back = {step.writes[0] for step in laid_out.steps if isinstance(step, Move) and step.back}
    behind = set(back)
    for step in laid_out.steps:
        if isinstance(step, Barrier):
            behind.update(w for r, w in zip(step.reads, step.writes, strict=True) if r in behind)
        late = isinstance(step, Run) and (step.again or graph.ops[step.op].phase is not Phase.FORWARD)
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
def test_a_value_leaves_once_and_comes_back_at_most_once(planned):
    graph, plan = planned
    laid_out = schedule(graph, plan)
    moves = [(laid_out.origin[step.reads[0]], step.back) for step in laid_out.steps if isinstance(step, Move)]
    out = [value for value, comes_back in moves if not comes_back]
    back = [value for value, comes_back in moves if comes_back]
    assert len(out) == len(set(out))
    assert len(back) == len(set(back))
    assert set(back) <= set(out)
