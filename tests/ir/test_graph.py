"""Graphs refuse to be broken, and their fingerprints say what is computed and nothing else."""

import dataclasses

import pytest
from hypothesis import given

from jaxckpt._errors import GraphError
from jaxckpt.ir import Graph, Phase
from tests.graphs import Builder, chain, graphs
from tests.residuals import residuals


def replaced(graph: Graph, op: int, **changes) -> Graph:
    ops = list(graph.ops)
    ops[op] = dataclasses.replace(ops[op], **changes)
    return dataclasses.replace(graph, ops=tuple(ops))


def test_what_other_rooms_derive_is_computed_once_for_each_graph():
    calls = []

    def count(graph):
        calls.append(graph)
        return len(graph.ops)

    first, second = chain(2), chain(3)
    assert [first.once(count), first.once(count), second.once(count)] == [len(first.ops)] * 2 + [len(second.ops)]
    assert calls == [first, second]


def test_all_broken_rules_are_reported_at_once():
    graph = replaced(chain(3), 0, reads=(3,), id=7)
    with pytest.raises(GraphError, match=r"\(1\).*\(2\)") as caught:
        graph.validate()
    assert "ops[0].id is 7" in caught.value.problems
    assert "op 7 reads 3 before it is written" in caught.value.problems


def test_a_value_written_twice_is_refused():
    with pytest.raises(GraphError, match="a second time"):
        replaced(chain(3), 1, writes=(1,)).validate()


def test_a_donated_value_that_is_no_input_is_refused():
    with pytest.raises(GraphError, match="donated value 2 is no input"):
        dataclasses.replace(chain(3), donated=frozenset({2})).validate()


def test_names_scopes_and_lines_do_not_change_the_fingerprint():
    graph = chain(3)
    assert replaced(graph, 0, scope="elsewhere", source="model.py:3").fingerprint == graph.fingerprint


@pytest.mark.parametrize("changes", [{"primitive": "conv"}, {"detail": "axes=(1,)"}, {"reads": (0, 0)}], ids=str)
def test_a_change_of_computation_changes_the_fingerprint(changes):
    graph = chain(3)
    assert replaced(graph, 0, **changes).fingerprint != graph.fingerprint


def test_donation_does_not_change_the_fingerprint():
    graph = chain(3)
    assert dataclasses.replace(graph, donated=frozenset({0})).fingerprint == graph.fingerprint


@given(graphs())
def test_residuals_are_forward_values_read_after_it(graph):
    for residual in residuals(graph):
        assert graph.ops[residual.op].phase is Phase.FORWARD
        assert residual.value in graph.ops[residual.op].writes
        assert residual.readers
        assert all(graph.ops[r].phase is not Phase.FORWARD for r in residual.readers)
        assert all(residual.value in graph.ops[r].reads for r in residual.readers)


def test_arguments_are_no_residuals():
    build = Builder()
    weight = build.input(4)
    hidden = build.op("dot_general", weight, size_bytes=4)
    out = build.op("dot_general", weight, hidden, size_bytes=4, phase=Phase.BACKWARD)
    assert [r.value for r in residuals(build.graph(out))] == [hidden]


### What the forward pass cannot do without


def test_the_forward_frontier_is_the_end_of_the_longest_chain():
    build = Builder()
    x = build.input(4)
    stream = build.op("dot_general", x, size_bytes=4)
    aside = build.op("exp", stream, size_bytes=4)
    longer = build.op("exp", aside, size_bytes=4)  # the longest chain by now, read by the backward alone
    on = build.op("dot_general", stream, size_bytes=4)
    for _ in range(3):
        on = build.op("dot_general", on, size_bytes=4)
    late = build.op("mul", on, longer, size_bytes=4, phase=Phase.BACKWARD)
    graph = build.graph(late)
    assert graph.forward_end == on
    assert graph.forward_frontier[:4] == (None, stream, stream, stream)
    assert graph.forward_frontier[-1] == on


def test_the_backward_frontier_of_a_branch_is_on_its_own_chain():
    """Two towers meet in the loss; the second one's gradient is computed behind all of the longer first one's."""
    build = Builder()
    x, y = build.input(4), build.input(4)
    loss = build.op("sub", x, y, size_bytes=4)
    cotangents = {}
    for tower, layers in (("first", 3), ("second", 1)):
        cotangents[tower] = [build.op("mul", loss, size_bytes=4, phase=Phase.BACKWARD)]
        for _ in range(layers):
            last = cotangents[tower][-1]
            cotangents[tower].append(build.op("dot_general", last, size_bytes=4, phase=Phase.BACKWARD))
    behind_first = build.op("dot_general", cotangents["first"][-1], size_bytes=4, phase=Phase.BACKWARD)
    behind_second = build.op("dot_general", cotangents["second"][-1], size_bytes=4, phase=Phase.BACKWARD)
    graph = build.graph(behind_first, behind_second)
    assert graph.backward_frontier[graph.producer[behind_first]] == cotangents["first"][-1]
    assert graph.backward_frontier[graph.producer[behind_second]] == cotangents["second"][-1]


@given(graphs())
def test_a_frontier_precedes_its_op_and_leads_to_the_end(graph):
    for op, front in zip(graph.ops, graph.forward_frontier, strict=True):
        if front is not None:
            assert graph.producer[front] < op.id
            assert front == graph.forward_end or any(r >= op.id for r in graph.readers[front])


def test_signatures_of_two_graphs_are_equal_where_their_values_and_ops_are():
    first, same, larger = chain(3), chain(3), chain(3, size_bytes=2**20)
    assert (first.value_signatures, first.op_signatures) == (same.value_signatures, same.op_signatures)
    assert set(first.value_signatures).isdisjoint(larger.value_signatures)
