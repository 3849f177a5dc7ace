"""What is drawn and said of the rules of eviction is what the rows say."""

import numpy as np

from benchmarks.coop_pictures import (
    ablations_table,
    ahead,
    bases_table,
    eager_table,
    fragmentations,
    held,
    logs_table,
    networks_table,
    overheads,
    searches,
    smallest,
)

RATIOS = (0.4, 0.5, 0.6)


def row(evictor, ratio, overhead, **facts):
    made = {"free_share": 0.02, "searches": 3, "search_s": 0.001, **facts}
    return {"evictor": evictor, "ratio": ratio, "ok": overhead > 0, "overhead": overhead, **made}


TIMES = {
    "dtr": (0, 1.3, 1.1),
    "dte": (1.4, 0, 1.3),
    "coop": (1.3, 1.2, 1.2),
    "coop_by_byte": (1.3, 1.2, 1.1),
    "static optimum": (1.2, 1.1, 1.0),
}
ROWS = [row(name, ratio, time) for name, times in TIMES.items() for ratio, time in zip(RATIOS, times, strict=True)]
NETWORKS = {f"net{i}": {"whole_bytes": 2**30, "rows": ROWS} for i in range(8)}
DATA = {"networks": NETWORKS, "made_with": {"versions": {"jax": "1.2.3"}, "date": "2026-01-01"}}


def test_the_smallest_share_is_above_the_last_failure():
    found = {name: smallest(NETWORKS["net0"], name) for name in TIMES}
    assert found == {"dtr": 0.5, "dte": 0.6, "coop": 0.4, "coop_by_byte": 0.4, "static optimum": 0.4}


def test_coop_is_held_against_others_where_those_end():
    assert held(NETWORKS["net0"], "dtr") == (1, 2)
    assert held(NETWORKS["net0"], "dte") == (2, 2)


def test_coop_is_ahead_where_it_completes_at_the_least_time_and_a_stop_is_never_less():
    assert ahead(NETWORKS["net0"]) == (2, 3)
    lines = bases_table({"coop-kernels": DATA, "coop-eager": DATA}).splitlines()
    assert lines[0].startswith("| network | kernels, H200: Coop ahead; fragmentation | every op, H200")
    assert lines[2] == "| net0 | 2 of 3; 2%, 2%, 2% | 2 of 3; 2%, 2%, 2% |"


def test_ablations_are_means_of_the_runs_that_complete():
    run = {"ok": True, "overhead": 1.2, "free_share": 0.02}
    stopped = {"ok": False, "overhead": 0.0, "free_share": 0.5}
    parts = {"Coop": [run, {**run, "overhead": 1.4}], "one end": [run, stopped], "no window": [stopped, stopped]}
    lines = ablations_table({"networks": {"unet": parts}}).splitlines()
    assert lines[0] == "| network | Coop | one end | no window |"
    assert lines[2] == "| unet | 1.300, 2% | 1.200, 2% (1 of 2) | stops |"


def test_logs_have_a_row_each():
    rule = {"overhead": ["thrash", 1.25], "free_share": [0.5, 0.01], "least_ratio": 0.2504}
    rules = dict.fromkeys(("dtr", "dte", "coop"), rule) | {"coop_by_byte": {**rule, "overhead": ["thrash"] * 2}}
    lines = logs_table({"ratios": [0.1, 0.5], "logs": {"unet": {"whole_bytes": 2**30, "memories": rules}}}).splitlines()
    least, half, worst = "0.250, 0.250, 0.250", "1.250, 1.250, 1.250, stops", "50%, 50%, 50%"
    assert lines[2] == f"| unet | 1.00 GiB | {least} | {half} | {worst} |"


def test_the_table_has_a_row_a_network():
    lines = networks_table(DATA).splitlines()
    assert lines[2] == ("| net0 | 1.00 GiB | 0.5, 0.6, 0.4, 0.4 | 1.300, stops, 1.200, 1.200, 1.100 | 2%, 2%, 2% |")
    assert len(lines) == 2 + 8 + 2


def test_every_network_has_axes_and_lines_end_where_a_rule_does():
    for draw, lines in ((overheads, 5), (fragmentations, 4), (searches, 4)):
        figure = draw(DATA)
        assert len(figure.axes) == 8
        assert {len(axes.lines) for axes in figure.axes} == {lines}
    first = overheads(DATA).axes[0].lines[0]
    assert list(first.get_xdata()) == [0.4, 0.5, 0.6]
    assert np.isnan(first.get_ydata()[0]) and list(first.get_ydata()[1:]) == [1.3, 1.1]


def test_eager_runs_are_held_against_the_one_without_a_budget():
    step = {"peak_bytes": 2**20, "recomputations": 2, "seconds": 0.5}
    plain = {"budget": "none", "evictor": "dtr_eq", "losses": ["a", "b"], "resident_bytes": 2**21, "steps": [step] * 2}
    runs = [
        plain,
        {**plain, "budget": "0.5", "losses": ["a", "c"]},
        {"budget": "0.5", "evictor": "coop", "failed": "x"},
    ]
    lines = eager_table({**DATA, "runs": {"gpt": runs}}).splitlines()
    assert lines[2:5] == [
        "| gpt | none | 1 MiB | 2 MiB | 4 | 2 of 2 | 0.50 s |",
        "| gpt | 0.5, `dtr_eq` | 1 MiB | 2 MiB | 4 | 1 of 2 | 0.50 s |",
        "| gpt | 0.5, `coop` | stops | | | | |",
    ]
