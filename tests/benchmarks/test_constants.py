"""The benchmark of tuning constants: it knows all of them, and leaves none changed."""

from dataclasses import fields

import pytest

from benchmarks.constants import CONSTANTS, default, table, with_value
from jaxckpt.planner.limits import Limits
from jaxckpt.solve.effort import Effort, default_effort


@pytest.mark.parametrize("name", CONSTANTS)
def test_todays_value_is_compared_with_others(name):
    values = CONSTANTS[name].values
    assert default(name) in values
    assert len(values) >= 2


@pytest.mark.parametrize("kind", [Effort, Limits])
def test_every_field_is_compared(kind):
    names = {f"{kind.__name__}.{each.name}" for each in fields(kind)}
    assert names <= CONSTANTS.keys()


def test_a_constant_has_another_value_inside_the_context_alone():
    name = "jaxckpt.cost.fusion._SMALL"
    before = default(name)
    with with_value(name, 0.5):
        assert default(name) == 0.5
    assert default(name) == before
    with with_value("Effort.cuts", 7):
        assert default_effort().cuts == 7
    assert default_effort() == Effort()


def test_the_table_marks_todays_value():
    figures = {"plans": 2, "same": 1, "step_s": 1.25}
    lines = table({"jaxckpt.a._B": {"today": "2", "values": {"1": figures, "2": figures}}}).splitlines()
    assert lines[2:] == [
        "| a._B | 1 | plans 2, same 1, step_s 1.25 |",
        "| a._B | 2 (today's) | plans 2, same 1, step_s 1.25 |",
    ]
