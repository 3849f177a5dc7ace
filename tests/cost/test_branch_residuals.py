"""Residuals of branches of which only one runs share a slot."""

import pytest

from jaxckpt.cost.loop_liveness import ResidualSlots, Span
from jaxckpt.ir import Graph, Loop
from jaxckpt.ir.regions import Branch


def branch(number, cond, position, *, parent=None, of=2):
    where = Branch(cond=cond, position=position, of=of)
    return Loop(id=number, length=1, reverse=False, parent=parent, branch=where)


LOOPS = (branch(0, 0, 0), branch(1, 0, 1), branch(2, 1, 0), branch(3, 1, 1), branch(4, 2, 0, parent=0))
GRAPH = Graph(values=(), ops=(), inputs=(), loops=LOOPS)


def placed(*homes, sizes=None):
    slots = ResidualSlots(GRAPH)
    spans = [
        slots.place(Span(birth=i, death=10 + i, size_bytes=(sizes or {}).get(i, 64)), home, 0)
        for i, home in enumerate(homes)
    ]
    return len({id(span) for span in spans}), spans


@pytest.mark.parametrize(
    ("homes", "count"),
    [
        ([(0,), (1,)], 1),
        ([(0,), (0,)], 2),
        ([(0,), (0,), (1,), (1,), (1,)], 3),
        ([(0,), (2,)], 2),
        ([(0, 4), (1,)], 1),
        ([(0, 4), (0,)], 2),
    ],
)
def test_only_residuals_never_alive_together_share_a_slot(homes, count):
    assert placed(*homes)[0] == count


def test_a_slot_holds_values_of_one_size():
    assert placed((0,), (1,), sizes={1: 32})[0] == 2


def test_a_shared_slot_covers_the_spans_of_all_its_values():
    _, (one, other) = placed((0,), (1,))
    assert one is other
    assert (one.birth, one.death) == (0, 11)


def test_a_value_of_no_branch_has_its_own_span():
    graph = Graph(values=(), ops=(), inputs=(), loops=(Loop(id=0, length=4, reverse=False),))
    new = Span(birth=0, death=1, size_bytes=64)
    assert ResidualSlots(graph).place(new, (0,), 0) is new
