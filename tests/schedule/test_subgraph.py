"""Some ops of a step as a step of their own."""

import pytest
from hypothesis import given, strategies as st

from jaxckpt.ir import Phase
from jaxckpt.schedule.subgraph import induced_subgraph
from tests.graphs import Builder, chain, graphs


@given(graphs(), st.data())
def test_any_ops_of_a_step_make_a_valid_step(graph, data):
    ops = sorted(data.draw(st.sets(st.integers(0, len(graph.ops) - 1), min_size=1)))
    given_values = data.draw(st.sets(st.sampled_from([v.id for v in graph.values])))
    taken = induced_subgraph(graph, ops, given_values)
    taken.graph.validate()
    assert [op.primitive for op in taken.graph.ops[taken.first :]] == [graph.ops[op].primitive for op in ops]
    for i, op in enumerate(ops, taken.first):
        assert taken.op_position[op] == i
        assert tuple(taken.values[v] for v in taken.graph.ops[i].reads) == graph.ops[op].reads
        assert tuple(taken.values[v] for v in taken.graph.ops[i].writes) == graph.ops[op].writes
    assert {taken.values[v] for v in taken.graph.ops[0].writes} <= given_values
    assert given_values.isdisjoint(taken.values[v] for v in taken.graph.inputs)


def test_layers_of_a_model_have_one_structure():
    graph = chain(12)
    first, second = (induced_subgraph(graph, range(i, i + 3), ()) for i in (3, 6))
    assert first.structure == second.structure
    assert first.structure != induced_subgraph(graph, range(3, 7), ()).structure
    assert first.structure != induced_subgraph(graph, range(3, 6), {graph.ops[2].writes[0]}).structure


@pytest.mark.parametrize("change", [{"size_bytes": 8}, {"flops": 2.0}, {"detail": "axis=1"}, {"phase": Phase.BACKWARD}])
def test_different_ops_have_different_structures(change):
    build = Builder()
    first = build.op("sin", build.input(4), size_bytes=4)
    second = build.op("sin", first, **{"size_bytes": 4, **change})
    graph = build.graph(second)
    assert induced_subgraph(graph, (0,), ()).structure != induced_subgraph(graph, (1,), ()).structure


def test_backward_results_that_others_read_are_returned():
    build = Builder()
    x = build.op("sin", build.input(4), size_bytes=4)
    y = build.op("cos", x, size_bytes=4, phase=Phase.BACKWARD)
    z = build.op("neg", y, size_bytes=4, phase=Phase.BACKWARD)
    graph = build.graph(z)
    taken = induced_subgraph(graph, (0, 1), ())
    assert [taken.values[v] for v in taken.graph.outputs] == [y]
    assert induced_subgraph(graph, (0, 1, 2), ()).graph.outputs == (taken.graph.outputs[0] + 1,)
