"""Footprints held against each other: what came, what went, what is done again, who is on the frontier."""

import dataclasses

import pytest
from hypothesis import given, settings, strategies as st

from jaxckpt import Comparison
from jaxckpt._units import format_seconds
from jaxckpt.comparison import compare_footprints, comparison_rows, peak_changes
from jaxckpt.hlo import Part, Role
from jaxckpt.report import render_text, report_of
from tests.memory_maps import MIB, buffer, kernel, made_footprint, memory_map


def two(**changes) -> Comparison:
    first, second = made_footprint(memory_map()), made_footprint(memory_map(recomputed=2), step_s=0.003, **changes)
    return compare_footprints({"none": first, "again": second})


BUFFERS = st.lists(
    st.builds(
        buffer,
        st.just(0),
        st.sampled_from(["", "GPT/block_0", "GPT/block_1"]),
        st.integers(0, 2),
        st.integers(2, 5),
        st.sampled_from([4, 8, MIB]),
        role=st.sampled_from([Role.RESIDUAL, Role.COTANGENT]),
        part=st.sampled_from([Part.FORWARD, Part.BACKWARD]),
        op=st.sampled_from(["dot_general", "add"]),
    ),
    max_size=12,
)


def holding(buffers):
    return memory_map(buffers=tuple(dataclasses.replace(b, id=i) for i, b in enumerate(buffers)))


@given(before=BUFFERS, after=BUFFERS)
def test_changes_at_the_peak_add_up_to_the_difference(before, after):
    before, after = holding(before), holding(after)
    changes = peak_changes(before, after)
    assert sum(change.change_bytes for change in changes) == after.peak_bytes - before.peak_bytes
    assert all(change.before != change.after for change in changes)


@given(before=BUFFERS, after=BUFFERS)
def test_changes_in_the_other_direction_are_negated(before, after):
    before, after = holding(before), holding(after)
    forth = {(c.buffer, c.before, c.after) for c in peak_changes(before, after)}
    back = {(c.buffer, c.after, c.before) for c in peak_changes(after, before)}
    assert forth == back


@given(buffers=BUFFERS)
@settings(max_examples=30)
def test_a_thing_compared_with_itself_differs_in_nothing(buffers):
    made = made_footprint(holding(buffers))
    same = compare_footprints({"a": made, "b": made})
    assert [peak.changes for peak in same.peaks] == [()]
    assert all(line.figures[0] == line.figures[1] for line in same.scopes)
    assert same.frontier == ("a", "b")


def test_buffers_that_went_are_named_and_places_do_not_matter():
    (peak,) = two().peaks
    assert peak.name == "again"
    assert [(c.buffer.scope, c.before, c.after) for c in peak.went] == [("GPT/block_0", 1, 0), ("GPT/block_1", 1, 0)]
    assert peak.came == ()
    moved = tuple(dataclasses.replace(b, offset_bytes=b.offset_bytes + 64) for b in memory_map().buffers)
    assert peak_changes(memory_map(), memory_map(buffers=moved)) == ()


def test_scopes_are_aligned_and_missing_ones_are_none():
    more = memory_map(kernels=(*memory_map().kernels, kernel("norm", "GPT/norm")))
    made = compare_footprints({"a": made_footprint(memory_map()), "b": made_footprint(more)})
    (line,) = [line for line in made.scopes if line.scope == "GPT/norm"]
    assert line.figures[0] is None
    assert line.figures[1].kernels == 1
    assert made.scopes[0].scope == ""


def test_recomputed_ops_are_counted_with_trip_counts():
    looped = memory_map(kernels=(kernel("body", "GPT", Part.RECOMPUTE, count=12), *memory_map().kernels))
    made = compare_footprints({"a": made_footprint(memory_map()), "b": made_footprint(looped)})
    assert [(op.scope, op.op, op.by_xla, op.runs) for op in made.recomputed] == [("GPT", "dot_general", False, (0, 12))]


def test_recomputation_by_xla_itself_is_counted_separately():
    by_xla = kernel("dot.remat", "GPT", Part.BACKWARD, by_xla=True)
    both = memory_map(kernels=(kernel("again", "GPT", Part.RECOMPUTE), by_xla, *memory_map().kernels))
    (ours, xlas) = compare_footprints({"a": made_footprint(both)}).recomputed
    assert {ours.by_xla, xlas.by_xla} == {True, False}


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.0, 1.0, 2.0, 3.0])), min_size=1, max_size=6),
)
def test_the_frontier_is_what_nothing_beats(places):
    made = {
        str(i): made_footprint(None, argument_bytes=0, temp_bytes=size_bytes, step_s=seconds)
        for i, (size_bytes, seconds) in enumerate(places)
    }
    frontier = {int(name) for name in compare_footprints(made).frontier}
    for i, (size_bytes, seconds) in enumerate(places):
        beaten = any(
            other_s and b <= size_bytes and other_s <= seconds and (b, other_s) != (size_bytes, seconds)
            for b, other_s in places
        )
        assert (i in frontier) == (seconds > 0 and not beaten)


def test_waits_for_copies_count_in_seconds():
    quick, waiting = made_footprint(None, temp_bytes=2), made_footprint(None, temp_bytes=1, stall_s=1.0)
    larger = made_footprint(None, temp_bytes=3, stall_s=0.5)
    found = compare_footprints({"quick": quick, "waiting": waiting, "larger": larger})
    assert found.frontier == ("quick", "waiting")
    assert format_seconds(waiting.step_s + 1.0) in render_text(report_of(found))


def test_what_cannot_be_compared_is_noted():
    made = compare_footprints(
        {"a": made_footprint(memory_map()), "b": made_footprint(None, target="v5e:1x1", step_s=0.0, caveats=("Hm.",))}
    )
    assert made.peaks == ()
    assert any("different machines" in note for note in made.notes)
    assert any("Only totals are known of b" in note for note in made.notes)
    assert any("time of b is not known" in note for note in made.notes)
    assert "b: Hm." in made.notes


def test_a_caveat_of_all_versions_is_said_once():
    made = made_footprint(memory_map(), caveats=("Hm.",))
    assert compare_footprints({"a": made, "b": made}).notes == ("Hm.",)


def test_a_versions_footprint_is_got_by_its_name():
    made = two()
    assert made["again"].step_s == 0.003
    with pytest.raises(KeyError):
        _ = made["other"]


def test_rows_hold_every_figure_once():
    rows = list(comparison_rows(two()))
    keys = [(row["version"], row["table"], row["scope"], row["what"], row["figure"]) for row in rows]
    assert len(keys) == len(set(keys))
    found = {key: row["value"] for key, row in zip(keys, rows, strict=True)}
    assert found["none", "total", "", "", "peak_bytes"] == 7 * MIB
    assert found["again", "scope", "GPT/block_0", "", "held_bytes"] == 0
    assert found["again", "recomputed", "GPT/block_1", "dot_general", "runs"] == 1
    changes = [row["value"] for row in rows if row["figure"] == "change_bytes"]
    assert sum(changes) == -2 * MIB
