"""DTE with MegEngine's settings: defaults, texts, the penalty of what was recomputed, and the planner by hand."""

from dataclasses import replace

import pytest

from jaxckpt import BudgetError
from jaxckpt.dynamic import (
    EVICTORS,
    Call,
    Event,
    EventKind,
    Memory,
    Mode,
    Program,
    Task,
    Tensor,
    simulate,
    unit_chain,
)
from jaxckpt.dynamic.evictors import DTE_CLOCK_BYTES
from jaxckpt.dynamic.megengine import megengine_dtr, megengine_dtr_config
from jaxckpt.dynamic.program import RunCall
from jaxckpt.dynamic.score import score
from jaxckpt.dynamic.state import layout, machine_of

MIB = 2**20


def evicted(found):
    return [event.id for event in found.events if event.kind is EventKind.EVICT]


def test_by_default_eviction_begins_when_an_allocation_fails_and_spares_small_values():
    settings = megengine_dtr("11GB")
    assert settings["budget"] == 11 * 2**30
    assert settings["memory"] == Memory(mode=Mode.HARD)
    assert settings["evictor"] == replace(EVICTORS["dte"], least_bytes=MIB + 1)
    tensors = tuple(Tensor(name=f"t{i}", size_bytes=size) for i, size in enumerate((MIB, MIB + 1, 2 * MIB)))
    calls = tuple(Call(name="make", price=1, reads=(), writes=(i,)) for i in range(3))
    program = Program(tensors=tensors, calls=calls, statements=tuple(map(RunCall, range(3))))
    found = simulate(program, record=True, **megengine_dtr(3 * MIB + 1))
    assert found.ok and evicted(found) == [1], "the stalest has one mebibyte, and stays"


def test_a_threshold_is_a_hint_below_the_memory_of_the_device():
    settings = megengine_dtr("11GB", eviction_threshold="2.5 gb", enable_sqrt_sampling=True)
    assert settings["budget"] == 5 * 2**29
    assert settings["memory"] == Memory(mode=Mode.HINT, capacity=11 * 2**30)
    assert settings["evictor"].name == "dte_sampled"
    found = simulate(unit_chain(64), **megengine_dtr(64, eviction_threshold=16))
    assert found.ok and found.peak_bytes == 64 and not found.forced_evictions, "nothing is larger than a mebibyte"
    found = simulate(unit_chain(64), **megengine_dtr(64, eviction_threshold=16, evictee_minimum_size="0b"))
    assert found.ok and found.peak_bytes == 16 and found.forced_evictions


@pytest.mark.parametrize(("text", "size_bytes"), [("7b", 7), ("2KB", 2048), ("1.5mb", 3 * 2**19), ("2 GB", 2**31)])
def test_texts_are_1024_based(text, size_bytes):
    assert megengine_dtr(text)["budget"] == size_bytes


@pytest.mark.parametrize("text", ["2", "2TB", "2GiB", "1GB 2GB", "-1GB", -1])
def test_other_texts_are_errors(text):
    with pytest.raises(BudgetError):
        megengine_dtr("1GB", eviction_threshold=text)


def test_amounts_are_whole_numbers_or_texts():
    with pytest.raises(TypeError, match=r"not 0\.5"):
        megengine_dtr(0.5)
    for wrong in ({"eviction_threshold": 0}, {"eviction_threshold": 1, "recomp_time_factor": -1}):
        with pytest.raises(BudgetError):
            megengine_dtr_config(**wrong)


def test_each_recomputation_makes_a_value_dearer_by_a_ten_thousandth():
    rule = EVICTORS["dte"]
    machine = machine_of(layout(unit_chain(4)), Task(budget=None, rule=rule, memory=Memory(mode=Mode.HARD)))
    storage, scores = machine.storages[2], {}
    storage.last, machine.now[0].clock = 1.0, 1.0 + 2 * DTE_CLOCK_BYTES
    for times in (0, 1, 2, 7, 1000):
        storage.times = times
        scores[times] = score(machine, 2)
    # One byte that lies beside no free ones, nothing evicted around it, and two units of the clock since its last use.
    assert scores[0] == pytest.approx(1e-3 / (1 / MIB * (2 + 1e-3)), rel=1e-12)
    for times, found in scores.items():
        assert found / scores[0] == pytest.approx(1.0001**times, rel=1e-12)


def planned(**factors):
    """Evictions of the planner before e, on a fixed program under six bytes.

    a (1 byte) feeds b (2), b feeds c (2); d (1) reads nothing. Then e (2) reads nothing and needs room for two bytes;
    f reads d, g reads c, h reads b, i reads a.
    """
    sizes = {"a": 1, "b": 2, "c": 2, "d": 1, "e": 2, "f": 0, "g": 0, "h": 0, "i": 0}
    reads = {"b": "a", "c": "b", "f": "d", "g": "c", "h": "b", "i": "a"}
    names = list(sizes)
    tensors = tuple(Tensor(name=name, size_bytes=size) for name, size in sizes.items())
    calls = tuple(
        Call(name=name, price=1, reads=tuple(names.index(r) for r in reads.get(name, "")), writes=(i,))
        for i, name in enumerate(names)
    )
    program = Program(tensors=tensors, calls=calls, statements=tuple(map(RunCall, range(len(names)))))
    settings = megengine_dtr_config(eviction_threshold=7, evictee_minimum_size=1, **factors)
    events = simulate(program, record=True, **settings).events
    before_e = events[: events.index(Event(EventKind.RUN, names.index("e")))]
    return [names[event.id] for event in before_e if event.kind is EventKind.EVICT]


# At e nothing is evicted. Bytes that calls move: a 1, b 3, c 4, d 1. Each has one reader that has not run, so F = 2.
# Distances to the next use: d 1, c 2, b 3, a 4. (F B)^time M^memory / size / distance is, with both exponents 1,
#   a 2 1 1/1/4 = 0.5    b 2 3 2/2/3 = 2    c 2 4 2/2/2 = 4    d 2 1 1/1/1 = 2
# so a goes; b would then bring a back, with B = 4 and M = 3:   b 2 4 3/2/3 = 4    c 4    d 2, and d goes.
# Without M:  a 0.5  b 1  c 2  d 2, then b 1.33: a and b go. With the root of F B alone: a 0.35  b 0.41  c 0.71  d 1.41,
# then b 0.47: the same. With its square: a 1  b 6  c 16  d 4, then b 10.7: a and d. With neither, b goes first, at
# 1/2/3, and is enough.
@pytest.mark.parametrize(
    ("time", "memory", "golden"),
    [(1, 1, ["a", "d"]), (1, 0, ["a", "b"]), (0.5, 0, ["a", "b"]), (2, 0, ["a", "d"]), (0, 0, ["b"])],
)
def test_the_planner_evicts_what_was_worked_out_by_hand(time, memory, golden):
    assert planned(recomp_time_factor=time, recomp_memory_factor=memory) == golden
