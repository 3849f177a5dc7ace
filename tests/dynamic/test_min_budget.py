"""The bisection for a least budget ends between one that suffices and one that does not, for every rule."""

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from jaxckpt import BudgetError
from jaxckpt.dynamic import (
    EVICTORS,
    MEMORIES,
    Call,
    Memory,
    Mode,
    Program,
    ProgramError,
    Search,
    Tensor,
    ablations,
    min_budget,
    simulate,
    unit_chain,
)
from jaxckpt.dynamic.program import Keep, Release, RunCall
from tests.dynamic.programs import programs

RULES = {rule.name: rule for rule in (*EVICTORS.values(), *ablations())}


def suffices(program, budget, **options):
    found = simulate(program, budget=budget, **options)
    return found.ok and found.peak_bytes <= budget


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_least_budget_completes_and_one_unit_less_does_not(rule):
    memory = Memory(mode=Mode.HARD) if rule.search is Search.WINDOW else MEMORIES.get(rule.name, Memory())
    for limit in (100, 1):
        options = {"evictor": rule, "memory": memory, "limit": limit}
        least = min_budget(unit_chain(64), **options)
        assert 3 <= least <= 64
        assert suffices(unit_chain(64), least, **options)
        assert not suffices(unit_chain(64), least - 1, **options)


@settings(max_examples=60)
@given(programs(), st.sampled_from(["dtr_eq", "dte", "coop", "lru"]), st.sampled_from([1, 4]))
def test_it_is_a_multiple_of_the_unit_on_every_program(program, rule, alignment):
    memory = Memory(mode=Mode.HARD, alignment=alignment)
    options = {"evictor": rule, "memory": memory}
    least = min_budget(program, **options)
    assert least % alignment == 0 and suffices(program, least, **options)
    if least > alignment:
        assert not suffices(program, least - alignment, **options)


def test_giving_up_early_needs_more():
    kept = {limit: min_budget(unit_chain(64), evictor="lru", limit=limit) for limit in (100, 1)}
    assert kept[100] == 3 < kept[1]
    assert simulate(unit_chain(64), budget=kept[1] - 1, evictor="lru", limit=1).status == "thrash"


def test_units_are_common_divisors_unless_given():
    larger = replace(unit_chain(16), tensors=tuple(replace(t, size_bytes=64) for t in unit_chain(16).tensors))
    assert min_budget(larger, evictor="dtr") == 64 * min_budget(unit_chain(16), evictor="dtr")
    assert min_budget(larger, evictor="dtr", unit_bytes=100) == 200
    with pytest.raises(BudgetError):
        min_budget(larger, unit_bytes=0)


def test_a_budget_that_may_be_exceeded_suffices_only_where_it_is_not():
    once = replace(unit_chain(4), calls=tuple(replace(call, once=True) for call in unit_chain(4).calls))
    for mode in (Mode.SOFT, Mode.HINT, Mode.COUNTED):
        assert min_budget(once, evictor="lru", memory=Memory(mode=mode)) == simulate(once).peak_bytes


def test_a_program_that_reads_what_was_freed_for_good_has_no_least_budget():
    drawn = Call(name="drawn", price=1, reads=(), writes=(0,), once=True)
    reader = Call(name="reader", price=1, reads=(0,), writes=(1,))
    tensors = Tensor(name="a", size_bytes=1), Tensor(name="b", size_bytes=1)
    lost = Program(tensors=tensors, calls=(drawn, reader), statements=(RunCall(0), Release(0), RunCall(1), Keep(1)))
    with pytest.raises(ProgramError, match="whatever the budget"):
        min_budget(lost)
