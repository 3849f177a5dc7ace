"""Reports compared as text: what the builders say, and that the lowering loses nothing of it."""

import dataclasses

import pytest
from hypothesis import given, strategies as st

from jaxckpt import ir
from jaxckpt.comparison import compare_footprints
from jaxckpt.compiler import Footprint
from jaxckpt.ir import Prediction
from jaxckpt.machine import TargetStatus
from jaxckpt.planner import Analysis, Attempt, Described, Plan, ScopeResiduals
from jaxckpt.report import (
    Section,
    Table,
    Text,
    analysis_report,
    comparison_report,
    plan_report,
    render_text,
    targets_report,
)
from jaxckpt.report.tree import columns

GIB = 2**30
MIB = 2**20


def described(value: int, scope: str, **changes) -> Described:
    known = {
        "primitive": "dot_general",
        "name": None,
        "shape": (8, 1024, 768),
        "dtype": "bfloat16",
        "size_bytes": 12 * MIB,
        "source": "models/gpt.py:31",
    }
    return Described(value=value, scope=scope, **(known | changes))


PREDICTION = Prediction(
    argument_bytes=GIB,
    output_bytes=0,
    temp_bytes=2 * GIB,
    step_s=0.0225,
    recompute_s=0.001,
    saved_bytes=144 * MIB,
    recomputed_ops=40,
)
FOOTPRINT = Footprint(
    argument_bytes=GIB, output_bytes=GIB, alias_bytes=GIB, temp_bytes=2 * GIB + 64 * MIB, compile_s=8.0
)


def plan() -> Plan:
    kept = [described(i, f"GPT2/block_{i}/qkv", name="qkv") for i in range(12)]
    dropped = [described(100 + i, f"GPT2/block_{i}", primitive="tanh") for i in range(12)]
    decisions: dict[int, ir.Decision] = {d.value: ir.Save() for d in kept}
    decisions |= {d.value: ir.Recompute() for d in dropped}
    return Plan(
        fingerprint="f",
        decisions=decisions,
        strategy="optimal",
        prediction=PREDICTION,
        target="h200",
        budget_bytes=4 * GIB,
        footprint=FOOTPRINT,
        described=(*kept, *dropped),
        notes=("A note for people.",),
        attempts=(
            Attempt(strategy="optimal", predicted_bytes=3 * GIB, measured_bytes=4 * GIB, step_s=0.02, compile_s=8.0),
            Attempt(strategy="optimal", predicted_bytes=3 * GIB, measured_bytes=3 * GIB, step_s=0.02, compile_s=0.0),
        ),
    )


def rows_of(text: str) -> list[list[str]]:
    """The cells of a text, line by line: what stands two or more spaces apart."""
    return [[cell for cell in line.strip().split("  ") if cell] for line in text.splitlines() if line.strip()]


def stripped(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in row] for row in rows_of(text)]


def test_a_plan_says_budget_compiled_and_predicted():
    said = stripped(render_text(plan_report(plan())))
    for row in (
        ["budget", "4.00 GiB"],
        ["compiled total", "3.06 GiB"],
        ["predicted total", "3.00 GiB"],
        ["predicted step, by the model", "22.50 ms"],
        ["of these recomputation", "1.00 ms"],
    ):
        assert row in said


def test_equal_layers_of_a_plan_are_one_row():
    said = stripped(render_text(plan_report(plan())))
    assert ["GPT2/block_*/qkv", "0-11", "bfloat16[8,1024,768] qkv", "12 MiB", "144 MiB", "gpt.py:31"] in said


def test_a_plan_shows_its_notes_recomputation_and_compilations():
    text = render_text(plan_report(plan()))
    assert "A note for people." in text
    assert "Recomputed: 12 values, 144 MiB" in text
    said = stripped(text)
    assert ["optimal", "3.00 GiB", "4.00 GiB", "-25.0%", "8.0 s"] in said
    assert ["optimal", "3.00 GiB", "3.00 GiB", "+0.0%", "known"] in said


def test_kinds_beyond_the_longest_list_are_added_up():
    many = [described(i, f"scope{'x' * i}", size_bytes=MIB) for i in range(30)]
    made = dataclasses.replace(plan(), described=tuple(many), decisions={d.value: ir.Save() for d in many})
    assert "and 6 more kinds, 6 MiB" in render_text(plan_report(made))


def test_a_plan_that_decides_nothing_shows_no_empty_tables():
    bare = Plan(fingerprint="f", target="h200", budget_bytes=GIB)
    text = render_text(plan_report(bare))
    assert "Plan for h200 (none)" in text
    assert "Saved" not in text
    assert "Compiles" not in text


def analysis(**changes) -> Analysis:
    rows = tuple(
        ScopeResiduals(
            scope=f"GPT2/block_{i}/{part}",
            residual_count=3,
            residual_bytes=30 * MIB,
            kept_bytes=size_bytes,
            largest=described(i, f"GPT2/block_{i}/{part}"),
            recompute_s=0.001,
            reader_count=2,
        )
        for i in range(3)
        for part, size_bytes in (("attention", 10 * MIB), ("mlp", 20 * MIB))
    )
    known = {
        "step": "train_step",
        "target": "h200",
        "scopes": rows,
        "op_count": 99,
        "argument_bytes": GIB,
        "constant_bytes": 0,
        "unplanned_bytes": 4 * GIB,
        "smallest_bytes": 2 * GIB,
        "unplanned_s": 0.02,
        "unpriced": (),
        "phases_source": "names",
    }
    return Analysis(**(known | changes))


def test_an_analysis_folds_layers_and_shows_the_heaviest_first():
    said = stripped(render_text(analysis_report(analysis()), width=160))
    rows = [row for row in said if row[0].startswith("GPT2")]
    value = ["bfloat16[8,1024,768] dot_general", "gpt.py:31"]
    assert rows == [
        ["GPT2/block_*/mlp", "0-2", "3", "20 MiB", "60 MiB", "1.00 ms", *value],
        ["GPT2/block_*/attention", "0-2", "3", "10 MiB", "30 MiB", "1.00 ms", *value],
    ]


@pytest.mark.parametrize(
    ("depth", "expected"), [(2, ["GPT2/block_*", "0-2", "6", "30 MiB", "90 MiB"]), (1, ["GPT2", "18", "90 MiB"])]
)
def test_scopes_below_a_depth_are_added_up(depth, expected):
    said = stripped(render_text(analysis_report(analysis(), depth=depth)))
    (row,) = (row for row in said if row[0].startswith("GPT2"))
    assert row[: len(expected)] == expected


def test_an_analysis_says_what_it_does_not_know():
    text = render_text(analysis_report(analysis(unpriced=(("my_kernel", 3),), phases_source="structure")), width=160)
    assert "my_kernel (3)" in text
    assert "told apart by structure" in text
    assert "nothing was compiled" in text


def test_targets_say_what_to_install():
    statuses = [
        TargetStatus(
            name="h200", kind="h200", description="NVIDIA H200", platform="cuda", memory_bytes=140 * GIB,
            usable=False, reason="not installed", install='pip install "jaxckpt[gpu-targets]"',
        ),
        TargetStatus(
            name="attached", kind="attached", description="this process", platform="", memory_bytes=0,
            usable=True, reason="", install="",
        ),
    ]  # fmt: skip
    said = stripped(render_text(targets_report(statuses)))
    assert ["h200", "NVIDIA H200", "140.00 GiB", "no", 'pip install "jaxckpt[gpu-targets]"'] in said
    assert ["attached", "this process", "yes"] in said


def test_host_memory_has_a_column_where_there_is_any():
    offloading = dataclasses.replace(FOOTPRINT, host_temp_bytes=576 * MIB)
    table = comparison_report(compare_footprints({"as it is": FOOTPRINT, "offloading": offloading})).parts[0]
    host = [column.heading for column in table.columns].index("host")
    assert [row[host] for row in table.rows] == ["", "576 MiB"]


def test_texts_are_shown_as_they_are():
    shown = render_text(
        Section(
            title="[bold]title[/bold]",
            parts=(
                Text(text="x[/red] [8,4]"),
                Table(title="[t]", columns=columns("[c]"), rows=(("[link]f32[8,4]",),), notes=("[n]",)),
            ),
        )
    )
    for text in ("[bold]title[/bold]", "x[/red] [8,4]", "[t]", "[c]", "[link]f32[8,4]", "[n]"):
        assert text in shown


@given(
    st.lists(
        st.tuples(*[st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), max_size=30)] * 3), max_size=5
    ),
    st.integers(20, 140),
)
def test_no_character_of_a_table_is_lost_at_any_width(rows, width):
    table = Table(title="", columns=columns("a", "b", "c"), rows=tuple(rows))
    text = render_text(table, width=width)
    assert all(len(line) <= width for line in text.splitlines())
    said = sorted("".join(text.split()))
    for character in sorted({c for row in rows for cell in row for c in cell}):
        assert said.count(character) >= sum(cell.count(character) for row in rows for cell in row)


def test_a_row_that_fits_no_columns_is_refused():
    with pytest.raises(ValueError, match="2 columns"):
        Table(title="t", columns=columns("a", "b"), rows=(("only one",),))
