"""What a footprint's report says, with a memory map and without."""

import dataclasses

import pytest

from jaxckpt._units import format_seconds
from jaxckpt.hlo import Part, seconds_by_part
from jaxckpt.machine import Target
from jaxckpt.report import footprint_report, html_of, render_text, report_of
from tests.memory_maps import MIB, buffer, kernel, made_footprint, memory_map


def said(footprint, *, unfold: bool = False, **options) -> list[list[str]]:
    """The report's lines as cells: what stands two or more spaces apart."""
    lines = render_text(footprint_report(footprint, **options), width=240, unfold=unfold).splitlines()
    return [[cell.strip() for cell in line.strip().split("  ") if cell.strip()] for line in lines]


def text(footprint) -> str:
    return render_text(footprint_report(footprint), width=240)


def test_the_totals_are_the_footprints():
    made = made_footprint(memory_map(), host_temp_bytes=3 * MIB, unused_argument_bytes=MIB, constant_bytes=2 * MIB)
    lines = said(made)
    for line in (
        ["total", "18 MiB"],
        ["arguments", "8 MiB"],
        ["temporaries", "8 MiB"],
        ["program and constants", "2 MiB"],
        ["host memory", "3 MiB"],
        ["arguments that nothing reads", "1 MiB"],
        ["estimated step", "2.00 ms"],
    ):
        assert line in lines


def test_the_peak_is_placed_and_its_fragmentation_said():
    assert "At the peak: 7 MiB of temporaries" in text(made_footprint(memory_map()))
    assert "Kernel 3 of 6, counted from 0: head (dot_general) in GPT/head, forward, models/gpt.py:7." in text(
        made_footprint(memory_map())
    )
    assert "XLA allocates 8 MiB for temporaries, 1.143 times as much." in text(made_footprint(memory_map()))


def test_peak_buffers_are_folded_over_layers_largest_first():
    lines = said(made_footprint(memory_map()))
    logits = ["GPT/head", "float32[1048576] dot_general", "forward", "logits", "4 MiB", "4 MiB", "gpt.py:7"]
    blocks = ["GPT/block_*", "0-2", "float32[262144] dot_general", "forward", "residual", "3 x 1 MiB", "3 MiB"]
    assert lines.index(logits) < lines.index([*blocks, "gpt.py:7"])
    assert ["logits", "4 MiB", "57%"] in lines


def test_buffers_beyond_the_list_are_added_up_and_can_be_shown():
    many = tuple(buffer(i, f"scope{'x' * i}", 0, 5) for i in range(20))
    made = made_footprint(dataclasses.replace(memory_map(), buffers=many))
    assert "and 8 more kinds, 8 MiB" in text(made)
    whole = [line[0] for line in said(made, unfold=True) if line]
    assert {f"scope{'x' * i}" for i in range(20)} <= set(whole)


def test_scopes_show_what_they_hold_and_equal_layers_are_one_row():
    lines = said(made_footprint(memory_map()))
    held = ["1 MiB", "3 MiB", "3 MiB", "1 MiB", "3", "3 MiB"]
    assert ["GPT/block_*", "0-2", *held] in lines
    assert ["full step", "7 MiB", "7 MiB", "7 MiB", "7 MiB", "5", "6 MiB"] in lines


def test_what_is_recomputed_is_a_share_of_the_arithmetic():
    lines = said(made_footprint(memory_map(recomputed=3)))
    (blocks,) = [line for line in lines if line[:2] == ["GPT/block_*", "0-2"] and "50%" in line]
    assert blocks[-2] == "50%"


def test_layers_that_differ_show_the_least_and_the_most():
    (blocks,) = [line for line in said(made_footprint(memory_map(recomputed=1))) if line[:2] == ["GPT/block_*", "0-2"]]
    assert blocks[2:4] == ["0 B - 1 MiB", "2 MiB"]


def test_depth_adds_up_what_lies_deeper():
    lines = said(made_footprint(memory_map()), depth=1)
    assert ["GPT", "7 MiB", "7 MiB", "7 MiB", "7 MiB", "5", "5 MiB"] in lines
    assert not any(line[:4] == ["GPT/block_*", "0-2", "1 MiB", "3 MiB"] for line in lines)


def test_parts_of_the_step_are_counted():
    lines = said(made_footprint(memory_map(recomputed=2)))
    assert ["recompute", "2", "2", "2 MiB", "0 B"] in lines
    assert ["update", "1", "0", "1 MiB", "0 B"] in lines


def test_times_of_parts_are_shown_if_their_sum_is_the_step_time():
    memory = memory_map(recomputed=2)
    seconds = seconds_by_part(memory, Target("h200").rates)
    (recompute,) = [
        line for line in said(made_footprint(memory, step_s=sum(seconds.values()))) if line[:1] == ["recompute"]
    ]
    assert recompute[-1] == format_seconds(seconds[Part.RECOMPUTE])
    for other in ({"step_s": 1.0}, {"step_s": 0.0}, {"target": "mine.toml"}, {"target": "attached"}):
        assert "time (est.)" not in text(made_footprint(memory, **{"step_s": sum(seconds.values())} | other))


def test_arithmetic_that_could_not_be_read_is_said():
    unpriced = kernel("fft", is_priced=False)
    made = made_footprint(dataclasses.replace(memory_map(), kernels=(*memory_map().kernels, unpriced)))
    assert "The arithmetic of 1 kernels could not be read" in text(made)


def test_rematerialisation_by_xla_is_counted_with_its_arithmetic():
    again = tuple(kernel(f"dot.{i}.remat", f"GPT/block_{i}", Part.RECOMPUTE, by_xla=True, count=2) for i in range(3))
    made = made_footprint(dataclasses.replace(memory_map(), kernels=(*memory_map().kernels, *again)))
    assert "XLA's own rematerialisation: 3 kernels, 6 GFLOP in each step" in text(made)
    assert ["GPT/block_*", "0-2", "dot_general", "3", "6", "6"] in said(made)
    assert "own rematerialisation" not in text(made_footprint(memory_map()))


def test_donation_that_did_not_take_is_named_with_bytes():
    made = made_footprint(memory_map(), undonated=(("[0]['w']", 8 * MIB), ("[0]['b']", MIB)))
    assert ["[0]['w']", "8 MiB"] in said(made)
    assert "taken over by no result" in text(made)


def test_sums_that_do_not_reconcile_are_said_once():
    problem = "temporaries: 1 byte more than XLA says"
    made = made_footprint(memory_map(problems=(problem,)), caveats=(problem, "a caveat"))
    assert text(made).count(problem) == 1
    assert "Note: a caveat" in text(made)
    assert problem in text(made_footprint(memory_map(problems=(problem,))))


def test_a_missing_memory_map_is_reported_and_totals_are_shown():
    made = made_footprint(None, step_s=0.0)
    assert ["total", "16 MiB"] in said(made)
    assert "where the bytes are is not known" in text(made)
    assert "At the peak" not in text(made)


def test_a_program_without_temporaries_has_no_peak():
    empty = memory_map(buffers=(), kernels=(), allocations=())
    assert "At the peak" not in text(made_footprint(empty))


def test_a_notebook_shows_the_same_report():
    made = made_footprint(memory_map())
    html = made._repr_html_()
    assert html == html_of(made)
    assert "At the peak: 7 MiB of temporaries" in html
    assert "<details><summary>By scope</summary>" in html


def test_a_layer_named_script_is_shown_in_a_notebook_and_not_run():
    named = memory_map(buffers=(buffer(0, "GPT/<script>", 0, 5),))
    html = made_footprint(named)._repr_html_()
    assert "<script" not in html
    assert "GPT/&lt;script&gt;" in html


def test_what_has_no_report_is_refused():
    with pytest.raises(TypeError, match="a footprint"):
        report_of(3)
