"""pandas frames: what is in them, and what is said where pandas is not there."""

import sys

import pytest

from jaxckpt import MissingPackageError
from jaxckpt.comparison import compare_footprints
from tests.memory_maps import MIB, made_footprint, memory_map


@pytest.fixture
def pandas():
    return pytest.importorskip("pandas")


def test_a_footprint_is_a_frame_of_its_buffers(pandas):
    frame = made_footprint(memory_map()).to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame[frame.at_peak].size_bytes.sum() == 7 * MIB
    assert frame.groupby("use").size_bytes.sum().to_dict() == {"argument": 8 * MIB, "temporary": 7 * MIB}


def test_a_footprint_without_a_map_is_an_empty_frame(pandas):
    empty = made_footprint(None).to_frame()
    assert len(empty) == 0
    assert list(empty.columns) == list(made_footprint(memory_map()).to_frame().columns)


def test_a_comparison_is_a_frame_that_can_be_pivoted(pandas):
    made = compare_footprints({"a": made_footprint(memory_map()), "b": made_footprint(memory_map(recomputed=3))})
    frame = made.to_frame()
    scopes = frame[(frame.table == "scope") & (frame.figure == "held_bytes")]
    held = scopes.pivot_table(index="scope", columns="version", values="value")
    assert held.loc["GPT/block_1"].to_dict() == {"a": MIB, "b": 0}


def test_without_pandas_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackageError, match=r"jaxckpt\[pandas\]"):
        made_footprint(memory_map()).to_frame()
