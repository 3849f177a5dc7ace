"""What notebooks show of our data."""

import subprocess
import sys
from importlib import import_module

import pytest

from jaxckpt import Policy
from jaxckpt._shown import Shown
from jaxckpt.comparison import compare_footprints
from jaxckpt.report import render_html, render_text, report_of
from jaxckpt.report.text import UNLIMITED
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


@pytest.mark.parametrize("name", sorted({*DATA} - {"policy"}))
def test_printed_is_what_the_shell_prints(name):
    assert str(DATA[name]) == render_text(report_of(DATA[name]), width=UNLIMITED).rstrip("\n")


@pytest.mark.parametrize("name", sorted({*DATA} - {"policy"}))
def test_a_repr_is_one_line_of_figures(name):
    text = repr(DATA[name])
    assert text.startswith(f"{type(DATA[name]).__name__}(")
    assert len(text.splitlines()) == 1
    assert len(text) < 200
    assert "iB" in text


def test_a_footprints_texts_name_its_layers_and_its_peak():
    footprint = DATA["footprint"]
    kernel = footprint.memory.kernels[footprint.memory.peak]
    assert repr(footprint).endswith(f"; peak in {kernel.scope}, {kernel.part})")
    assert "At the peak" in str(footprint)
    assert kernel.scope.partition("/")[0] in str(footprint)


def test_no_result_prints_all_of_its_fields():
    for room in ("planner", "comparison", "verifier", "compiler", "linter", "dynamic.compare", "dynamic.eager"):
        import_module(f"jaxckpt.{room}")
    kinds = set(Shown.__subclasses__()) - {Policy}  # a policy is as short as its rules
    assert len(kinds) > 12
    assert {kind for kind in kinds if kind.__repr__ is not Shown.__repr__ or kind.summary is Shown.summary} == set()


def test_data_loads_no_report_until_it_is_shown():
    code = (
        "import sys; from jaxckpt.compiler import Footprint; "
        "made = Footprint(argument_bytes=1, output_bytes=0, alias_bytes=0, temp_bytes=0); "
        "assert 'jaxckpt.report' not in sys.modules; made._repr_html_(); assert 'jaxckpt.report' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
