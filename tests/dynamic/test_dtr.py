"""DTR's figures: the unit chain exactly, its theorem, and the engine against DTR by the book on random programs."""

import math

import pytest
from hypothesis import given, settings, strategies as st

from jaxckpt.dynamic import Status, simulate, unit_chain, unlimited_bytes
from tests.dynamic.oracle import OutOfMemory, Reference
from tests.dynamic.programs import programs

GOLDEN = {
    (16, 4): (90, 100, 62),
    (16, 6): (46, 56, 48),
    (16, 8): (41, 44, 42),
    (64, 7): (258, 860, 257),
    (64, 16): (178, 290, 189),
    (64, 32): (161, 164, 162),
}
"""Operations that DTR's own simulator counts, by length and budget: h_DTR, h_LRU, h_MSPS."""


@pytest.mark.parametrize(("length", "budget"), GOLDEN)
def test_the_unit_chain_takes_as_many_operations_as_upstream(length, budget):
    dtr, lru, msps = GOLDEN[length, budget]
    expected = {"dtr": dtr, "dtr_eq": dtr, "local": lru, "lru": lru, "msps": msps}
    for rule, operations in expected.items():
        found = simulate(unit_chain(length), budget=budget, evictor=rule)
        assert (rule, found.operations) == (rule, operations)
        assert found.ok and found.peak_bytes <= budget


@pytest.mark.parametrize("rule", ["dtr", "dtr_eq"])
def test_chain_costs_are_linear_at_twice_the_root_of_the_length(rule):
    for length in (16, 64, 256, 1024, 4096):
        found = simulate(unit_chain(length), budget=2 * math.isqrt(length), evictor=rule)
        assert found.ok and found.operations <= 3.2 * length


def test_local_costs_break_that_bound():
    found = simulate(unit_chain(1024), budget=64, evictor="local")
    assert found.operations > 5 * 1024


def test_without_releases_the_chain_costs_more():
    kept = simulate(unit_chain(64, releases=False), budget=16, evictor="dtr")
    assert kept.operations > simulate(unit_chain(64), budget=16, evictor="dtr").operations


@settings(max_examples=300)
@given(programs(), st.sampled_from(["dtr_eq", "msps", "local", "lru", "size"]), st.floats(0.4, 0.95))
def test_the_engine_does_what_the_book_says(program, rule, share):
    budget = max(1, int(unlimited_bytes(program) * share))
    reference = Reference(program, budget, rule)
    found = simulate(program, budget=budget, evictor=rule)
    try:
        clock = reference.run()
    except OutOfMemory:
        assert found.status is Status.OUT_OF_MEMORY
        assert found.reason
        return
    assert found.ok
    assert 1 + found.base_price + found.recompute_price == clock
    assert found.operations == 1 + reference.runs
    assert found.peak_bytes <= budget


@settings(max_examples=200)
@given(programs(multiple=False), st.floats(0.4, 0.95))
def test_exact_neighbourhoods_are_those_of_the_book(program, share):
    budget = max(1, int(unlimited_bytes(program) * share))
    reference = Reference(program, budget, "dtr")
    found = simulate(program, budget=budget, evictor="dtr")
    try:
        clock = reference.run()
    except OutOfMemory:
        assert found.status is Status.OUT_OF_MEMORY
        return
    assert 1 + found.base_price + found.recompute_price == clock
