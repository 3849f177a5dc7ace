"""`jaxckpt simulate`: a table a figure, as text and as JSON."""

import json

import pytest

from jaxckpt import BudgetError
from jaxckpt.cli.simulate import parse_ratios, simulate
from jaxckpt.dynamic import UnknownEvictorError
from jaxckpt.dynamic.compare.evictor_comparison import compare_evictors
from tests.cli import simulated

STEP = "tests.cli.simulated:made"


def test_tables_name_each_rule_and_the_optimum(capsys):
    simulate(STEP, evictors="dtr,coop", ratios="0.7,1.0")
    out = capsys.readouterr().out
    for word in ("dtr", "coop", "static optimum", "Fragmentation", "searches", "0.7", "1.000"):
        assert word in out


def test_json_has_the_rows(capsys):
    simulate(STEP, evictors="dtr,dte,coop", ratios="0.5:0.9:0.2", basis="eager", json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["basis"] == "eager" and len(found["rows"]) == 9
    assert {row["evictor"] for row in found["rows"]} == {"dtr", "dte", "coop"}
    assert all(row["ok"] == (row["reason"] == "") for row in found["rows"])


@pytest.mark.parametrize("text", ["", "much", "0", "1.5", "0.3:0.9:0", "0.1:0.2:0.3:0.4", "0.5,"])
def test_other_ratios_are_refused(text):
    with pytest.raises(BudgetError, match="shares"):
        parse_ratios(text)


def test_unknown_rules_and_bases_are_refused():
    with pytest.raises(UnknownEvictorError):
        simulate(STEP, evictors="dtt")
    with pytest.raises(ValueError, match="kernels"):
        compare_evictors(lambda x: x, 1.0, basis="both")


def test_pages_have_charts_and_the_memory_call_by_call(tmp_path, capsys):
    simulate(
        STEP, evictors="dtr,coop", ratios="0.8,1.0", html=tmp_path / "all.html", watch=tmp_path / "pool.html", at=0.8
    )
    capsys.readouterr()
    page = (tmp_path / "all.html").read_text()
    assert page.count("<canvas") == 3 and "static optimum" in page and page.count("<script") == 1
    pool = (tmp_path / "pool.html").read_text()
    assert '"name":"dtr"' in pool and '"name":"coop"' in pool and '"states":[[' in pool


def test_plans_of_what_rules_do_stand_beside_the_optimum():
    made = simulated.made()
    found = compare_evictors(made[0], *made[1], evictors=["coop"], ratios=[0.9, 1.0], frozen=True)
    assert found.evictors == ("coop", "static optimum", "coop as a plan") and found.rules == ("coop",)
    assert all(row.overhead >= 0.9 for row in found.rows_of("coop as a plan") if row.ok)
