"""Amounts of memory as people write them, and what is no amount."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from jaxckpt._errors import BudgetError
from jaxckpt._units import budget_bytes, budget_fraction, format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("6GiB", 6 * 2**30),
        ("6GB", 6 * 10**9),
        ("6 gib", 6 * 2**30),
        ("1.5KiB", 1536),
        ("1000", 1000),
        ("2e3", 2000),
        (".5kB", 500),
    ],
)
def test_amounts_are_read(text, expected):
    assert parse_bytes(text) == budget_bytes(text) == expected


@pytest.mark.parametrize(
    "budget",
    [
        "6 apples",
        "",
        "GiB",
        "-1",
        "nan",
        "1e999",
        "inf",
        -1,
        0,
        0.0,
        float("nan"),
        float("inf"),
        -0.5,
        True,
        None,
        [],
        "0",
        "120%",
    ],
    ids=repr,
)
def test_what_is_no_budget_is_refused_with_an_example(budget):
    with pytest.raises(BudgetError, match='"6GiB"') as caught:
        budget_bytes(budget, baseline_bytes=100)
    assert isinstance(caught.value, ValueError)


def test_numbers_of_numpy_are_budgets():
    assert budget_bytes(np.int64(2**31)) == budget_bytes(np.float32(2**31)) == 2**31
    assert budget_bytes(np.float32(0.5), baseline_bytes=1000) == 500
    with pytest.raises(BudgetError):
        budget_bytes(np.int64(-1))


def test_a_share_needs_the_footprint_that_it_is_a_share_of():
    assert budget_bytes(0.5, baseline_bytes=100) == budget_bytes("50%", baseline_bytes=100) == 50
    with pytest.raises(BudgetError, match="needs the footprint"):
        budget_bytes(0.5)


def test_one_byte_and_the_whole_are_told_apart_by_type():
    assert budget_fraction(1) is None
    assert budget_fraction(1.0) == 1.0


@given(st.text(max_size=12))
def test_any_text_is_an_amount_or_a_budget_error(text):
    try:
        assert budget_bytes(text, baseline_bytes=1000) >= 1
    except BudgetError as error:
        assert error.got == repr(text)


@given(st.integers(0, 2**50))
def test_written_amounts_read_back_nearly(size_bytes):
    assert parse_bytes(format_bytes(size_bytes)) == pytest.approx(size_bytes, rel=0.01, abs=0)
