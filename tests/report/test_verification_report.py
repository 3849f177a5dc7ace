"""What a verification looks like: what is wrong stands on top, and what was not compared is said."""

import dataclasses

import numpy as np

from jaxckpt.report import render_text, report_of
from jaxckpt.verifier import Tolerance, Verification, difference

ALLOWED = Tolerance(relative=0.01, absolute=0.0)


def leaf(path, planned, step=(1.0, 2.0)):
    return difference(path, np.float32(step), np.float32(planned), ALLOWED)


SAME = Verification(step="train_step", exact=False, leaves=(leaf("['loss']", [1, 2]), leaf("['w']", [1, 2.01])))


def test_what_is_the_same_is_said_in_the_title():
    assert report_of(SAME).title == "train_step: the planned step computes the same, within rounding"
    exact = dataclasses.replace(SAME, exact=True, leaves=SAME.leaves[:1])
    assert report_of(exact).title == "train_step: the planned step computes the same, bit for bit"
    assert "Both steps ran one operation at a time." in render_text(report_of(exact))


def test_what_is_wrong_stands_on_top_with_its_figures():
    wrong = dataclasses.replace(SAME, leaves=(*SAME.leaves, leaf("['b']", [1, 3]), leaf("['c']", [1, np.nan])))
    report = report_of(wrong)
    assert report.title == "train_step: 2 of 4 results are wrong"
    rows = report.parts[1].rows
    assert rows[0] == ("['b']", "float32[2]", "1 of 2", "1", "0.5", "0.02", "WRONG")
    assert rows[1][0] == "['c']"
    assert rows[1][-1] == "NaN or infinity differs"
    assert [row[-1] for row in rows[2:]] == ["within rounding", "bit-equal"]


def test_what_was_not_compared_is_said():
    told = dataclasses.replace(
        SAME,
        generated=("[0]", "[1]"),
        effects=("Debug",),
        random_draws=(4, 8),
        leaves=(leaf("", [np.inf, 2], step=(np.inf, 2)),),
    )
    text = " ".join(render_text(report_of(told)).split())
    assert "2 described arguments were generated." in text
    assert "Random bits are drawn 4 times in the step, 8 times in the planned step." in text
    assert "effects, which were not compared: Debug." in text
    assert "1 elements are NaN or infinite in the step as written." in text


def test_a_notebook_shows_it():
    assert "WRONG" not in SAME._repr_html_()
    assert "within rounding" in SAME._repr_html_()
