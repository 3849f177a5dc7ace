"""Composition of chains against every combination, and against the integer programme."""

import random
from itertools import product

import pytest

from jaxckpt.solve.optimal import compose as composing
from jaxckpt.solve.optimal.chain import chain_of
from jaxckpt.solve.optimal.compose import compose
from jaxckpt.solve.optimal.options import Option
from jaxckpt.solve.optimal.stage_memory import ActiveInterval, StageMemory


def drawn(seed, *, count=5, most_options=3):
    """Options and memory of a chain whose stages are active on the way forth and back; the last one is always held."""
    draw = random.Random(seed)
    sizes = [draw.randint(1, most_options) for _ in range(count)] + [1]
    options = [[option(draw.randint(-20, 100)) for _ in range(size)] for size in sizes]
    intervals = []
    for stage in (*range(count + 1), *reversed(range(count + 1))):
        later = (count,) if stage < count and len(intervals) > count else ()
        own_bytes = tuple(draw.randint(0, 200) for _ in range(sizes[stage]))
        intervals.append(ActiveInterval(stage=stage, holding=(*range(stage), *later), own_bytes=own_bytes))
    stage_s = tuple(tuple(1e-6 * draw.randint(1, 50) for _ in range(size)) for size in sizes)
    return options, StageMemory(intervals=tuple(intervals), stage_s=stage_s)


def option(saved_bytes):
    return Option(saved=frozenset(), saved_bytes=saved_bytes, recompute_s=0.0)


def seconds(memory, chosen):
    return sum(own[k] for own, k in zip(memory.stage_s, chosen, strict=True))


@pytest.mark.parametrize("seed", range(40))
def test_no_combination_within_the_budget_is_faster(seed):
    options, memory = drawn(seed)
    chain = chain_of(options, memory)
    combinations = list(product(*(range(len(own)) for own in options)))
    peaks = {chosen: memory.peak_bytes(options, chosen) for chosen in combinations}
    for budget_bytes in {*peaks.values(), min(peaks.values()) - 1}:
        within = [chosen for chosen, peak_bytes in peaks.items() if peak_bytes <= budget_bytes]
        found = chain.fastest(budget_bytes)
        assert (found is None) == (not within)
        if found is not None:
            assert peaks[found] <= budget_bytes
            assert seconds(memory, found) == pytest.approx(min(seconds(memory, c) for c in within))


@pytest.mark.parametrize("seed", range(40))
def test_the_least_is_the_fastest_of_those_of_least_memory(seed):
    options, memory = drawn(seed)
    found = chain_of(options, memory).least()
    combinations = list(product(*(range(len(own)) for own in options)))
    least_bytes = min(memory.peak_bytes(options, chosen) for chosen in combinations)
    smallest = [chosen for chosen in combinations if memory.peak_bytes(options, chosen) == least_bytes]
    assert memory.peak_bytes(options, found) == least_bytes
    assert seconds(memory, found) == pytest.approx(min(seconds(memory, chosen) for chosen in smallest))


def test_many_stages_are_composed_as_by_the_integer_programme(monkeypatch):
    options, memory = drawn(7, count=60, most_options=8)
    least_bytes = memory.peak_bytes(options, compose(options, memory, budget_bytes=None))
    found = [compose(options, memory, budget_bytes=least_bytes * part // 10) for part in (10, 13, 18)]
    monkeypatch.setattr(composing, "chain_of", lambda options, memory: None)
    assert memory.peak_bytes(options, compose(options, memory, budget_bytes=None)) == least_bytes
    for part, chosen in zip((10, 13, 18), found, strict=True):
        by_programme = compose(options, memory, budget_bytes=least_bytes * part // 10)
        fastest_s = sum(map(min, memory.stage_s))
        gained = (seconds(memory, chosen) - fastest_s) / max(1e-9, seconds(memory, by_programme) - fastest_s)
        assert gained <= 1.005


def test_stages_that_are_held_out_of_order_are_no_chain():
    options = [[option(1), option(2)], [option(1), option(2)]]
    intervals = (
        ActiveInterval(stage=0, holding=(1,), own_bytes=(1, 1)),
        ActiveInterval(stage=1, holding=(), own_bytes=(1, 1)),
    )
    assert chain_of(options, StageMemory(intervals=intervals, stage_s=((1.0, 2.0), (1.0, 2.0)))) is None
