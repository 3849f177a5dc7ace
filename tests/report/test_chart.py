"""A chart is lines with ticks and a legend in HTML, and nothing in a terminal, where its table stands."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from jaxckpt.report import Chart, Line, Section, Text, render_html, render_text
from jaxckpt.report.html import _escaped as escaped
from jaxckpt.report.svg import svg_lines

LINES = (
    Line(name="dtr & co", points=((0.5, 2.0), (0.25, 4.0), (1.0, 1.0))),
    Line(name="optimum", points=((0.5, 1.5), (1.0, 1.0)), dashed=True),
)


def chart(**changes):
    return Chart(**{"title": "time", "x_heading": "share", "y_heading": "times", "lines": LINES, **changes})


def drawn(of):
    return ElementTree.fromstring("".join(svg_lines(of, escaped=escaped)))


def circles(of):
    return [(float(c.get("cx")), float(c.get("cy"))) for c in drawn(of).iter("circle")]


def test_points_stand_where_their_numbers_say_and_more_is_higher():
    places = circles(chart())
    xs = [x for x, _ in places]
    assert xs[:3] == sorted(xs[:3]) and len(places) == 5
    assert places[0][1] < places[1][1] < places[2][1], "0.25: 4, 0.5: 2, 1: 1"
    assert places[2] == places[4]


def test_a_logarithm_makes_doublings_equally_high_and_omits_zero():
    (_, a), (_, b), (_, c) = circles(chart(log=True, lines=LINES[:1]))
    assert b - a == pytest.approx(c - b, abs=0.2)
    zero = Line(name="none", points=((0.5, 0.0),))
    assert len(circles(chart(log=True, lines=(*LINES, zero)))) == 5


def test_names_are_escaped_and_dashes_are_drawn():
    words = "".join(svg_lines(chart(), escaped=escaped))
    assert "dtr &amp; co" in words and words.count("stroke-dasharray") == 2


@pytest.mark.parametrize("lines", [(), (Line(name="empty", points=()),), (Line(name="one", points=((1.0, 1.0),)),)])
def test_nothing_and_one_point_are_charts_too(lines):
    assert drawn(chart(lines=lines)).tag == "svg"


def test_html_has_it_and_text_has_the_rest():
    report = Section(title="both", parts=(chart(), Text(text="a sentence")))
    assert re.search(r"<figcaption>time</figcaption><svg", render_html(report))
    assert render_text(report) == "both\na sentence\n"
