"""The benchmark of the model's error: depths are reduced, and the table names what is far off."""

from benchmarks.model_error import reduced, table
from benchmarks.strangers import STRANGERS


def test_a_reduced_step_keeps_its_width():
    shapes = {value.shape for value in reduced(STRANGERS["tanh-14"]).graph.values}
    assert (32768, 1024) in shapes
    products = [op for op in reduced(STRANGERS["tanh-14"]).graph.ops if op.primitive == "dot_general"]
    assert len(products) == 3 * 3 - 1


def test_the_table_has_medians_and_what_is_off_by_more_than_the_wanted_worst():
    steps = {
        name: {"plans": {"none": {"total": total, "seconds": 0.01}, "full": {"error": "no plan"}}}
        for name, total in (("near", -0.02), ("far", 0.4))
    }
    lines = table(steps).splitlines()
    assert "| none | 2 | 21.0% | 40.0% | 1.0% | 1.0% |" in lines
    assert lines[-1] == "| far | none | +40.0% | +1.0% |"
