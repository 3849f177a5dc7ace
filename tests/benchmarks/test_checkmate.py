"""The networks of Checkmate's paper are as published, and tables and pictures say what was kept."""

import numpy as np
import pytest

from benchmarks.checkmate import PAGE, least_bytes, overhead_table, overheads, ratio, ratio_table
from benchmarks.keras_networks import NETWORKS, RATES, constant_bytes, training_graph, training_kernels
from benchmarks.record import read
from benchmarks.tables import filled
from jaxckpt.solve import Problem, solve
from jaxckpt.solve.baselines.checkmate import two_phase

PUBLISHED = {
    "VGG16": (45, 138_357_544, 15.5),
    "VGG19": (51, 143_667_240, 19.6),
    "MobileNet": (185, 4_253_864, 0.59),
    "ResNet50": (353, 25_636_712, 4.4),
}
"""Nodes of Keras's layers, its count of parameters, and 10^9 multiply-accumulates of one image."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_networks_have_the_published_parameters_and_multiply_accumulates(name):
    nodes, parameters, macs = PUBLISHED[name]
    layers = NETWORKS[name].layers()
    assert 2 * len(layers) + 1 == nodes
    assert sum(layer.parameters for layer in layers) == parameters
    assert sum(layer.macs for layer in layers) / 1e9 == pytest.approx(macs, rel=0.02)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_replay_counts_the_bytes_and_seconds_that_the_programme_counts(name):
    kernels = training_kernels(NETWORKS[name].layers(), 2)
    count = len(kernels.cost_s)
    everything = two_phase(kernels, np.ones((count, count), bool))
    plan = solve(Problem(graph=training_graph(kernels), rates=RATES), "none").predicted
    assert plan.temp_bytes == everything.peak_bytes
    assert plan.step_s == pytest.approx(everything.cost_s)
    assert least_bytes(kernels) < everything.peak_bytes


def test_a_gradient_reads_what_the_layer_gave_and_all_that_came_of_it():
    layers = NETWORKS["VGG16"].layers()
    kernels = training_kernels(layers, 4)
    count = len(layers)
    assert kernels.reads[count] == (count - 1,) and kernels.reads[count + 1] == (count - 1, count)
    assert kernels.reads[2 * count] == (0, 1, 2 * count - 1)
    assert kernels.cost_s[2 * count] == 2 * kernels.cost_s[0]
    assert constant_bytes(layers) == 8 * 138_357_544


def figure(overhead, seconds=1.0):
    return {"overhead": overhead, "seconds": seconds}


def row(budget_bytes, half, integer, **others):
    ways = {"bound": 0.0, "drawn": None, "rounded": 0.02, "optimal": 0.01, **others, "half": half, "integer": integer}
    return {"budget_bytes": budget_bytes, **{key: figure(value) for key, value in ways.items()}}


DATA = {
    "networks": {
        "VGG16": {
            "kernels": 45,
            "batch": 256,
            "most_bytes": 9e9,
            "rows": [row(5e9, None, 0.04), row(6e9, 0.21, 0.1, rounded=0.1), row(7e9, 0.44, 0.0, rounded=0.0)],
        }
    },
    "made_with": {"versions": {"scipy": "1.2.3"}, "python": "3.12.0", "date": "2026-01-01"},
}


def test_a_ratio_is_the_geometric_mean_over_budgets_that_both_reach():
    assert ratio(DATA["networks"]["VGG16"], "half") == (pytest.approx((1.1 * 1.44) ** 0.5), 2)
    assert ratio(DATA["networks"]["VGG16"], "drawn") is None


def test_tables_have_a_row_a_budget_and_a_row_a_network():
    lines = overhead_table(DATA).splitlines()
    assert lines[2] == "| VGG16, 256, 45 | 5.0 GB | 0.00% | none, none, 2.00% | 4.00% | 1.00% |"
    assert lines[3] == "|  | 6.0 GB | 0.00% | 21.00%, none, 10.00% | 10.00% | 1.00% |"
    assert "1.01 | 1.0 s, 1.0 s, 1.0 s |" in ratio_table(DATA)
    assert "1.259 (2 budgets)" in ratio_table(DATA)


def test_lines_end_without_overhead_where_everything_fits():
    (axes,) = overheads(DATA).axes
    lines = {line.get_label(): line for line in axes.lines}
    assert len(lines) == 4
    assert list(lines["integer programme"].get_xdata()) == [5, 6, 7, 9]
    assert list(lines["integer programme"].get_ydata()) == pytest.approx([4, 10, 0, 0])


def test_the_page_is_current_and_its_figures_are_consistent():
    data, text = read("checkmate"), PAGE.read_text()
    tables = {"checkmate": overhead_table(data), "checkmate ratios": ratio_table(data)}
    assert filled(text, tables) == text, "run: python -m benchmarks.checkmate --draw"
    for network in data["networks"].values():
        for made in network["rows"]:
            bound = made["bound"]["overhead"]
            found = [made[key]["overhead"] for key in ("half", "drawn", "rounded", "integer") if key in made]
            assert all(each is None or each >= bound - 1e-6 for each in found)
