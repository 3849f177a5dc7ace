"""Plans of a problem: which decisions remain."""

from unittest import mock

from hypothesis import given, strategies as st

from jaxckpt.ir import Decision, Graph, GraphPlan, Phase, Recompute, Save
from jaxckpt.schedule import Barrier, Run, schedule
from jaxckpt.solve import Problem
from tests.graphs import RATES, graphs


def recomputable(graph: Graph) -> list[int]:
    forward = (graph.ops[op] for op in graph.forward)
    return [v for op in forward if not op.effects for v in op.writes if v not in graph.results]


def read_later(graph: Graph, decisions: dict[int, Decision], stages: tuple[int, ...]) -> set[int]:
    """Values that ops after the forward pass, clones and their barriers read, in the schedule of all decisions."""
    scheduled = schedule(graph, GraphPlan(fingerprint="", decisions=decisions, stages=stages))
    later = (
        step
        for step in scheduled.steps
        if (isinstance(step, Run) and (step.is_clone or graph.ops[step.op].phase is not Phase.FORWARD))
        or (isinstance(step, Barrier) and step.is_in_backward)
    )
    return {scheduled.origin[instance] for step in later for instance in step.reads}


@given(graphs(most_ops=20), st.data())
def test_saves_that_nobody_reads_later_are_dropped_and_a_plan_is_scheduled_once(graph, data):
    values = recomputable(graph)
    drawn = data.draw(
        st.lists(st.sampled_from([None, Save(), Recompute()]), min_size=len(values), max_size=len(values))
    )
    decisions = {v: d for v, d in zip(values, drawn, strict=True) if d is not None}
    stages = (0, *sorted(data.draw(st.sets(st.sampled_from(graph.forward[1:]), max_size=2))))
    read = read_later(graph, decisions, stages)
    problem = Problem(graph=graph, rates=RATES)
    with mock.patch("jaxckpt.solve.problem.schedule", side_effect=schedule) as scheduling:
        plan = problem.plan(decisions, stages, "test")
    assert plan.decisions == {v: d for v, d in decisions.items() if isinstance(d, Recompute) or v in read}
    assert scheduling.call_count == 1
