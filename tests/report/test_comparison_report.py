"""A comparison as text, page, CSV and JSON."""

import csv
import dataclasses
import io
import json

from jaxckpt.comparison import compare_footprints
from jaxckpt.report import comparison_data, comparison_report, render_html, render_text, to_csv
from tests.memory_maps import MIB, kernel, made_footprint, memory_map


def comparison(**more):
    first = made_footprint(memory_map())
    second = made_footprint(memory_map(recomputed=3), temp_bytes=5 * MIB, step_s=0.003)
    return compare_footprints({"none": first, "again": second, **more})


def said(made, **options) -> list[list[str]]:
    lines = render_text(comparison_report(made, **options), width=240).splitlines()
    return [[cell.strip() for cell in line.strip().split("  ") if cell.strip()] for line in lines]


def test_totals_stand_side_by_side_with_their_difference():
    lines = said(comparison())
    assert ["none", "16 MiB", "8 MiB", "8 MiB", "7 MiB", "2.00 ms", "yes"] in lines
    assert ["again", "13 MiB", "-3 MiB", "8 MiB", "5 MiB", "4 MiB", "3.00 ms", "3 kernels", "yes"] in lines


def test_scopes_that_differ_are_shown_and_the_others_counted():
    lines = said(comparison())
    assert ["GPT/block_*", "0-2", "3 MiB", "0 B", "-3 MiB"] in lines
    assert ["full step", "7 MiB", "4 MiB", "-3 MiB"] in lines
    assert ["1 scopes take the same in all versions."] in lines


def test_the_largest_difference_comes_before_the_largest_scope():
    smaller_head = tuple(
        dataclasses.replace(b, size_bytes=2 * MIB) if b.scope == "GPT/head" else b
        for b in memory_map(recomputed=3).buffers
    )
    other = made_footprint(memory_map(recomputed=3, buffers=smaller_head))
    lines = said(compare_footprints({"none": made_footprint(memory_map()), "other": other}))
    at_peak = lines[lines.index(["Bytes at the peak"]) :]
    shown = [line[0] for line in at_peak if line and line[-1].startswith("-") and line[-1].endswith("MiB")]
    assert shown[2:4] == ["GPT/block_*", "GPT/head"]
    assert ["GPT/head", "4 MiB", "2 MiB", "-2 MiB"] in at_peak


def test_depth_leaves_out_deeper_scopes():
    lines = said(comparison(), depth=1)
    assert ["GPT", "7 MiB", "4 MiB", "-3 MiB"] in lines
    assert ["GPT/block_*", "0-2", "3 MiB", "0 B", "-3 MiB"] not in lines


def test_buffers_that_came_and_went_are_listed_with_their_sums():
    lines = said(comparison())
    assert ["At the peak, from none to again: -3 MiB (3 MiB went, 0 B came)"] in lines
    row = ["GPT/block_*", "0-2", "float32[262144] dot_general", "forward", "residual", "1 MiB", "3", "0", "-3 MiB"]
    assert row in lines
    assert not any(line and line[0].startswith("Came") for line in lines)


def test_ops_done_again_are_counted_by_version():
    assert ["GPT/block_*", "0-2", "dot_general", "the step", "0", "3"] in said(comparison())
    by_xla = made_footprint(memory_map(kernels=(*memory_map().kernels, kernel("x", "GPT", by_xla=True))))
    assert ["GPT", "dot_general", "XLA itself", "0", "0", "1"] in said(comparison(xla=by_xla))


def test_equal_versions_say_that_nothing_differs():
    made = made_footprint(memory_map())
    text = render_text(comparison_report(compare_footprints({"a": made, "b": made})))
    assert "The same buffers are alive." in text
    assert "Bytes at the peak: the same in all versions, for each of 4 scopes." in text


def test_a_comparison_of_totals_alone_shows_totals_alone():
    made = compare_footprints({"a": made_footprint(None, step_s=0.0), "b": made_footprint(None, step_s=0.0)})
    text = render_text(comparison_report(made))
    assert "Only totals are known of a, b" in text
    assert "By scope" not in text
    assert "against memory" not in text


def test_the_page_draws_the_frontier_and_unfolds():
    html = render_html(comparison_report(comparison()))
    assert '"frontier":[["again",' in html
    assert "<details><summary>By scope</summary>" in html
    assert comparison()._repr_html_() == html


def test_names_of_versions_are_escaped_everywhere():
    evil = "<img src=x onerror=alert(1)>"
    html = render_html(comparison_report(comparison(**{evil: made_footprint(memory_map())})))
    assert "<img" not in html
    assert "&lt;img src=x" in html


def test_csv_reads_back_as_the_same_figures():
    rows = list(csv.DictReader(io.StringIO(to_csv(comparison(**{'a "quoted", name\n': made_footprint(None)})))))
    assert set(rows[0]) == {"version", "table", "scope", "what", "figure", "value"}
    totals = {row["version"]: int(row["value"]) for row in rows if row["figure"] == "total_bytes"}
    assert totals == {"none": 16 * MIB, "again": 13 * MIB, 'a "quoted", name\n': 16 * MIB}


def test_json_is_one_object_of_everything():
    data = json.loads(json.dumps(comparison_data(comparison())))
    assert [version["total_bytes"] for version in data["versions"]] == [16 * MIB, 13 * MIB]
    assert data["frontier"] == ["none", "again"]
    assert sum(change["change_bytes"] for change in data["peaks"][0]["went"]) == -3 * MIB
    assert {op["scope"] for op in data["recomputed"]} == {"GPT/block_0", "GPT/block_1", "GPT/block_2"}
