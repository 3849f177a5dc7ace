"""Running sums of gradients that are live at an op, against their definition."""

from hypothesis import given, strategies as st

from jaxckpt.ir import Graph, Kind, Phase
from jaxckpt.schedule.passing import GradAccumulators
from tests.graphs import Builder


@st.composite
def backward_graphs(draw: st.DrawFn) -> Graph:
    """A backward of products, sums of gradients and other ops, each of which reads what it likes."""
    build = Builder()
    made = [build.op("sin", build.input(4000), size_bytes=4000)]
    for primitive in draw(st.lists(st.sampled_from(["dot_general", "mul", "add_any"]), min_size=1, max_size=16)):
        reads = draw(st.lists(st.sampled_from(made), min_size=2, max_size=2))
        made.append(build.op(primitive, *reads, size_bytes=4000, phase=Phase.BACKWARD))
    return build.graph(made[-1])


@given(backward_graphs())
def test_sums_are_live_until_the_product_before_their_addition(graph):
    accumulators = GradAccumulators(graph)
    for at in graph.ops:
        expected = []
        for op in graph.ops[: at.id]:
            added_by = [graph.ops[reader] for value in op.writes for reader in graph.readers[value]]
            if op.phase is Phase.BACKWARD and [by.primitive for by in added_by] == ["add_any"]:
                products = [
                    later for later in graph.ops[at.id + 1 : added_by[0].id + 1] if later.kind is Kind.CONTRACTION
                ]
                expected += op.writes if products else ()
        assert accumulators.live_at(at.id) == expected
