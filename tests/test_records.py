"""Records: tables against type hints, all problems at once; files written by earlier versions are read."""

import enum
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, strategies as st

import jaxckpt
from jaxckpt import ir
from jaxckpt._records import (
    COLUMNS,
    NOT_NEGATIVE,
    POSITIVE,
    TABLE,
    RecordError,
    digest,
    numbered,
    parse_json,
    parse_toml,
    read_document,
    read_record,
    table_from_record,
)
from jaxckpt.machine import load_calibration, load_facts, toml_from_calibration
from jaxckpt.testing import load_snapshot
from jaxckpt.testing.file import Owner

OLD = Path(__file__).parent / "old_files"
"""Written by jaxckpt 0.1.0 before records had one reader."""


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Point:
    x: int
    size: Annotated[float, NOT_NEGATIVE] = 0.0
    colour: Colour = Colour.RED


@dataclass(frozen=True, kw_only=True)
class Drawing:
    name: str
    points: Annotated[tuple[Point, ...], COLUMNS] = ()
    corners: tuple[Point, ...] = ()
    rates: Annotated[tuple[tuple[str, Annotated[float, POSITIVE]], ...], TABLE] = ()
    options: tuple[tuple[str, Any], ...] = ()
    shape: tuple[int, ...] = ()
    origin: Point | None = None
    is_closed: bool = False
    cached: object = field(default=None, compare=False)


points = st.builds(Point, x=st.integers(), size=st.floats(0, 1e9), colour=st.sampled_from(Colour))
several = st.lists(points, max_size=3).map(tuple)


@given(
    st.builds(
        Drawing,
        name=st.text(),
        points=several,
        corners=several,
        rates=st.dictionaries(st.text(), st.floats(1e-9, 1e9)).map(lambda rates: tuple(rates.items())),
        options=st.lists(st.tuples(st.text(), st.integers() | st.text() | st.booleans()), max_size=3).map(tuple),
        shape=st.lists(st.integers()).map(tuple),
        origin=st.none() | points,
        is_closed=st.booleans(),
    )
)
def test_a_table_gives_back_its_record(drawing):
    assert read_record(Drawing, table_from_record(drawing)) == drawing


def test_none_and_what_is_not_compared_are_in_no_table():
    assert table_from_record(Drawing(name="a", cached=3)).keys().isdisjoint({"origin", "cached"})
    with pytest.raises(RecordError, match="cached is no key"):
        read_record(Drawing, {"name": "a", "cached": 3})


def test_columns_are_lists_by_key_and_pairs_are_keys():
    drawing = Drawing(name="a", points=(Point(x=1), Point(x=2, colour=Colour.BLUE)), rates=(("fast", 2.0),))
    table = table_from_record(drawing)
    assert table["points"] == {"x": [1, 2], "size": [0.0, 0.0], "colour": ["red", "blue"]}
    assert table["rates"] == {"fast": 2.0} and table["corners"] == []


def test_every_problem_has_the_path_of_its_key():
    table = {
        "nam": "a",
        "points": {"x": [1, True], "size": [0.0, 1.0], "colour": ["red", "green"]},
        "corners": [{"x": 1}, {"x": 1.5, "size": -1}, 7],
        "rates": {"fast": 0.0},
        "options": [["a"]],
        "shape": [1, "2"],
        "origin": {"size": math.inf},
        "is_closed": 1,
    }
    with pytest.raises(RecordError) as caught:
        read_record(Drawing, table)
    assert caught.value.problems == (
        "name is missing: a text",
        "nam is no key; the closest is 'name'",
        "points.x 2 = True should be a whole number",
        "points.colour 2 = 'green' should be one of red, blue",
        "corners 2: x = 1.5 should be a whole number",
        "corners 2: size = -1 should be a number of at least 0",
        "corners 3 = 7 should be a table",
        "rates.fast = 0.0 should be a number above 0",
        "options 1 = ['a'] should be a list of 2",
        "shape 2 = '2' should be a whole number",
        "origin.x is missing: a whole number",
        "origin.size = inf should be a number of at least 0",
        "is_closed = 1 should be true or false",
    )
    assert (caught.value.missing, caught.value.unknown) == (("name", "x"), ("nam",))


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"x": [1]}, "points.size is missing: a column"),
        ({"x": [1, 2], "size": [0.0], "colour": ["red", "red"]}, "points.size is shorter than other columns: 1 of 2"),
        ({"x": 1, "size": [], "colour": []}, "points.x = 1 should be a list"),
        ({"x": [], "size": [], "colour": [], "y": []}, "points.y is no key"),
        ([], "points = [] should be a table of columns"),
    ],
)
def test_columns_of_a_wrong_form_are_refused(columns, problem):
    with pytest.raises(RecordError) as caught:
        read_record(Drawing, {"name": "a", "points": columns})
    assert problem in caught.value.problems


@pytest.mark.parametrize("table", [None, [], 3, "x"])
def test_what_is_no_table_is_refused(table):
    with pytest.raises(RecordError, match=r"it = .* should be a table"):
        read_record(Point, table)


def test_a_long_value_and_many_problems_are_cut_off():
    with pytest.raises(RecordError) as caught:
        read_record(Drawing, {"name": ["x" * 1000]})
    assert len(str(caught.value)) < 200
    assert numbered(list("abc" * 10)).endswith("(20) b; ...")


def test_a_digest_knows_values_and_no_order():
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 1, "b": 3})


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\xff", "no text"),
        (b"[", "no JSON"),
        (b"[]", "format None"),
        (b'{"format": "a", "version": 2}', "version 2"),
        (b"\x1f\x8b\x00", "cannot be read"),
    ],
)
def test_a_document_of_something_else_is_refused(tmp_path, data, problem):
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(RecordError, match=problem):
        read_document(tmp_path / "a", parse_json, format_="a", version=1)


def test_a_missing_document_and_text_that_is_no_toml_are_refused(tmp_path):
    with pytest.raises(RecordError, match="cannot be read: No such file"):
        read_document(tmp_path / "a", parse_toml, format_="a", version=1)
    with pytest.raises(RecordError, match="no TOML"):
        parse_toml("x = " + "[" * 5000)


def test_old_footprints_are_read():
    footprint = jaxckpt.load_footprint(OLD / "footprint.json.gz")
    assert (footprint.target, footprint.argument_bytes, footprint.total_bytes) == ("cpu", 3584, 14020)
    assert footprint.memory is not None and footprint.memory.temp_bytes == footprint.temp_bytes


def test_old_calibrations_are_read_and_written_alike_without_their_factors():
    calibration = load_calibration(OLD / "calibration.toml")
    assert calibration.matmul_flops_per_s == (("bfloat16", 7e14), ("float32", 3e14))
    assert (calibration.device_count, calibration.measured[0].count, len(calibration.measured)) == (8, 9, 2)
    lines = (OLD / "calibration.toml").read_text().splitlines(keepends=True)
    assert toml_from_calibration(calibration) == "".join(line for line in lines if not line.startswith("factors"))


def test_old_fact_files_are_read():
    assert load_facts(OLD / "facts.toml") == replace(jaxckpt.Target("h100").facts, network_bandwidth=None)


def test_old_snapshots_are_read():
    snapshot = load_snapshot(OLD / "snapshot.toml", owner=Owner(test="test_step", name="small"))
    assert snapshot.total_bytes == 14020
    assert [(each.scope, each.peak_bytes) for each in snapshot.scopes] == [("net", 10248)]


def test_old_plans_are_read():
    plan = jaxckpt.load_plan(OLD / "plan.toml")
    assert dict(plan.decisions) == {5: ir.Recompute(), 6: ir.Recompute(), 8: ir.Recompute()}
    assert plan.footprint is not None and plan.footprint.total_bytes == 10948
    assert plan.attempts[0].predicted_bytes == 11776
