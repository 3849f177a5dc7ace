"""Charts and scatters are drawn by Chart.js in a page, and a chart is nothing in a terminal, where its table stands."""

import json
import re

import pytest
from hypothesis import given, strategies as st

from jaxckpt.report import Chart, Line, Point, Scatter, Section, Text, render_html, render_page, render_text

LINES = (
    Line(name="dtr & </script>", points=((0.5, 2.0), (0.25, 4.0), (1.0, 1.0))),
    Line(name="optimum", points=((0.5, 1.5), (1.0, 1.0)), dashed=True),
)
GIB = 2**30


def chart(**changes):
    return Chart(**{"title": "time", "x_heading": "share", "y_heading": "times", "lines": LINES, **changes})


def scatter(*places, frontier=(), unnamed=()):
    points = tuple(
        Point(
            name="" if at in unnamed else f"v{at}",
            x=float(x),
            y=float(y),
            x_text=f"{x} B",
            y_text=f"{y} s",
            on_frontier=at in frontier,
        )
        for at, (x, y) in enumerate(places)
    )
    return Scatter(title="plans", x_heading="total", y_heading="step", points=points, x_unit="bytes", y_unit="seconds")


def data_of(part):
    (data,) = json.loads(re.findall(r"\)\(\"[0-9a-f]{12}\", (\[.*\])\);</script>", render_html(part))[0])
    return data


def test_lines_run_from_left_to_right():
    data = data_of(chart())
    assert [(name, dashed) for name, dashed, _ in data["lines"]] == [("dtr & </script>", False), ("optimum", True)]
    assert [(x, y) for _, x, y, _ in data["lines"][0][2]] == [(0.25, 4.0), (0.5, 2.0), (1.0, 1.0)]


def test_a_logarithm_omits_what_is_not_positive():
    zero = Line(name="none", points=((0.5, 0.0), (1.0, 3.0)))
    assert [len(points) for _, _, points in data_of(chart(log=True, lines=(zero,)))["lines"]] == [1]
    assert [len(points) for _, _, points in data_of(chart(lines=(zero,)))["lines"]] == [2]


@given(st.lists(st.tuples(st.floats(0, 1e15), st.floats(0, 1e6)), max_size=8), st.sets(st.integers(0, 7)))
def test_every_point_is_drawn_once_and_the_frontier_from_left_to_right(places, frontier):
    data = data_of(scatter(*places, frontier=frontier, unnamed=(0, 3)))
    drawn = [(x, y) for key in ("frontier", "beaten", "small") for _, x, y, _ in data[key]]
    assert sorted(drawn) == sorted(places)
    assert data["frontier"] == sorted(data["frontier"], key=lambda point: point[1:3])
    assert all(name for name, *_ in data["beaten"]) and not any(name for name, *_ in data["small"])


def test_a_page_of_several_reports_of_equal_pictures_has_one_name_for_them():
    one, other = (re.findall('data-charts="([0-9a-f]+)"', render_html(chart(title=t))) for t in ("a", "b"))
    assert one == other and one != re.findall('data-charts="([0-9a-f]+)"', render_html(chart(x_heading="c")))


def test_text_has_the_rest_and_a_canvas_its_points_as_text():
    report = Section(title="both", parts=(chart(), Text(text="a sentence")))
    assert '<canvas role="img" aria-label="time: times over share">dtr &amp; &lt;/script&gt;: 0.25, 4;' in render_html(
        report
    )
    assert render_text(report) == "both\na sentence\n"


PICTURES = (
    scatter((2 * GIB, 0.05), (4 * GIB, 0.04), (4 * GIB, 0.06), (3 * GIB, 0.045), frontier=(0, 1), unnamed=(3,)),
    chart(),
    chart(log=True, lines=(*LINES, Line(name="one", points=((0.5, 1e-4),)))),
    chart(lines=()),
    chart(lines=(Line(name="empty", points=()), Line(name="one", points=((1.0, 1.0),)))),
    scatter(),
    scatter((GIB, 0.0)),
)


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_pictures_in_a_browser_have_ticks_and_a_tip_at_the_pointer(browser, tmp_path, width, scheme):
    path = tmp_path / "report.html"
    path.write_text(render_page(Section(title="pictures", parts=PICTURES)))
    page, complaints, requests = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900}), [], []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("[data-drawn]")
    assert page.get_attribute(".jaxckpt-report", "data-drawn") == str(len(PICTURES))
    charts = "document.querySelector('.jaxckpt-report').jaxckptCharts"
    labels = "(axis) => CHARTS[0].scales[axis].ticks.map((tick) => tick.label)".replace("CHARTS", charts)
    assert set(page.evaluate(labels, "x")) >= {"2 GiB", "3 GiB", "4 GiB"}
    assert len(page.evaluate(labels, "y")) > 3 and all(each.endswith(" ms") for each in page.evaluate(labels, "y"))
    assert page.evaluate(f"() => {charts}[2].scales.y.type") == "logarithmic"
    x, y = page.evaluate(
        f"() => [{charts}[0].scales.x.getPixelForValue({2 * GIB}), {charts}[0].scales.y.getPixelForValue(0.05)]"
    )
    page.locator("canvas").first.hover(position={"x": x + 3, "y": y + 3})
    shown = "() => { const { tooltip } = CHARTS[0]; return [tooltip.opacity, tooltip.body[0].lines[0]]; }"
    assert page.evaluate(shown.replace("CHARTS", charts)) == [1, f"v0: {2 * GIB} B, 0.05 s"]
    ink = page.evaluate(f"() => {charts}[0].options.scales.x.ticks.color")
    assert ink == {"light": "rgb(31, 35, 40)", "dark": "rgb(231, 233, 236)"}[scheme]
    assert page.evaluate("() => document.documentElement.scrollWidth") == width
    page.close()
    assert requests == [path.as_uri()] and not complaints
