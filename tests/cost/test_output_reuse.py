"""Temporaries in results that are not yet written: never two at one time in one place, never over the result."""

from hypothesis import given, strategies as st

from jaxckpt.cost.loop_liveness import Span
from jaxckpt.cost.peak import placed_in_outputs
from jaxckpt.ir import GraphPlan, Phase
from jaxckpt.solve import Problem
from tests.graphs import RATES, Builder

MIB = 2**20


@st.composite
def spans(draw):
    birth = draw(st.integers(0, 20))
    return Span(birth=birth, death=birth + draw(st.integers(0, 6)), size_bytes=draw(st.integers(1, 4)) * MIB)


some_spans = st.lists(spans(), max_size=8)


@given(some_spans, some_spans)
def test_placed_temporaries_never_exceed_the_unwritten_results(temporaries, results):
    found = placed_in_outputs(dict(enumerate(temporaries)), results)
    for at in range(30):
        alive = [span for i, span in enumerate(temporaries) if i in found and span.birth <= at <= span.death]
        free = [result for result in results if result.birth > at]
        assert len(alive) <= len(free)
        for size in range(1, 5):
            fits = sum(result.size_bytes >= size * MIB for result in free)
            assert sum(span.size_bytes >= size * MIB for span in alive) <= fits


@given(some_spans, some_spans)
def test_a_temporary_without_a_place_fits_in_no_result(temporaries, results):
    if not placed_in_outputs(dict(enumerate(temporaries)), results):
        for span in temporaries:
            assert all(result.size_bytes < span.size_bytes or result.birth <= span.death for result in results)


def live_bytes(*, donated):
    """A product that dies before the gradient is written; the gradient may take over an argument."""
    build = Builder()
    x = build.input(MIB)
    early = build.op("dot_general", x, size_bytes=MIB)
    loss = build.op("dot_general", early, size_bytes=4)
    gradient = build.op("dot_general", loss, size_bytes=MIB, phase=Phase.BACKWARD)
    graph = build.graph(gradient, donated=[x] if donated else [])
    return Problem(graph=graph, rates=RATES).replay(GraphPlan(fingerprint=graph.fingerprint)).peak_bytes


def test_only_a_result_with_its_own_memory_holds_temporaries():
    assert live_bytes(donated=False) == 4
    assert live_bytes(donated=True) == MIB + 4
