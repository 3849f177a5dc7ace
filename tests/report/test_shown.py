"""What notebooks show of our data."""

import subprocess
import sys

import pytest

from jaxckpt import Policy
from jaxckpt.comparison import compare_footprints
from jaxckpt.report import render_html, report_of
from tests.memory_maps import made_footprint, memory_map
from tests.report.test_html import Read
from tests.report.test_reports import analysis, plan

POLICY = """
name = "frugal"
for = "small models"
[[rule]]
scope = "GPT/<b>"
min_bytes = "8MiB"
decision = "save"
note = "why not"
"""
DATA = {
    "footprint": made_footprint(memory_map()),
    "comparison": compare_footprints({"a": made_footprint(memory_map()), "b": made_footprint(None)}),
    "plan": plan(),
    "analysis": analysis(),
    "policy": Policy.from_toml(POLICY),
}


@pytest.mark.parametrize("name", DATA)
def test_a_notebook_shows_the_report_whole_and_well_formed(name):
    html = DATA[name]._repr_html_()
    assert html == render_html(report_of(DATA[name]))
    read = Read(html)
    assert read.open == []
    assert read.tags.count("tr") >= 3


def test_a_policy_shows_its_rules_in_order_and_the_rest():
    cells = Read(DATA["policy"]._repr_html_()).of("td")
    assert cells == [
        "1",
        "scope = 'GPT/<b>', min_bytes = 8 MiB",
        "save",
        "must",
        "why not",
        "everything else",
        "recompute",
    ]


@pytest.mark.parametrize("name", DATA)
def test_the_text_of_data_is_still_its_own(name):
    assert repr(DATA[name]).startswith(type(DATA[name]).__name__)


def test_data_loads_no_report_until_it_is_shown():
    code = (
        "import sys; from jaxckpt.compiler import Footprint; "
        "made = Footprint(argument_bytes=1, output_bytes=0, alias_bytes=0, temp_bytes=0); "
        "assert 'jaxckpt.report' not in sys.modules; made._repr_html_(); assert 'jaxckpt.report' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
