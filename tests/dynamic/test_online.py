"""The engine asked call by call decides what the simulation decides, and takes prices as they become known."""

import math

from hypothesis import given, settings, strategies as st

from jaxckpt.dynamic import EventKind, Memory, Online, Task, evictor, simulate, unit_chain, unlimited_bytes
from tests.dynamic.programs import programs


def task(program, share, rule="dtr_eq", **changes):
    facts = {
        "budget": max(1, int(unlimited_bytes(program) * share)),
        "rule": evictor(rule),
        "memory": Memory(),
        "most_recompute_price": math.inf,
        "most_recomputations": 10**5,
        "seed": 0,
        "record": False,
    }
    return Task(**{**facts, **changes})


@settings(max_examples=60)
@given(programs(donated=True, once=True), st.sampled_from(["dtr_eq", "local", "lru"]), st.floats(0.4, 1))
def test_stopping_behind_each_call_changes_nothing(program, rule, share):
    asked = task(program, share, rule)
    online = Online(program, asked)
    steps = list(online)
    found = simulate(program, budget=asked.budget, evictor=rule, record=True)
    assert tuple(event for events in steps for event in events) == found.events
    assert online.status is found.status
    for number, events in enumerate(steps[: len(program.calls)]):
        if online.status == "ok":
            assert (events[-1].kind in (EventKind.RUN, EventKind.TAKE)) and number in {e.id for e in events}


@settings(max_examples=30)
@given(programs(), st.floats(0.5, 1))
def test_prices_that_come_late_add_up(program, share):
    online = Online(program, task(program, share))
    seconds = [3 * call.price + 1 for call in program.calls]
    for number, _ in enumerate(online):
        if number < len(program.calls) and online.status is None:
            online.reprice(number, seconds[number])
    counters = online.simulation(0.0)
    if counters.ok and online.status is not None:
        assert abs(counters.base_price - sum(seconds)) <= seconds[-1]


def test_prices_decide():
    def evicted(prices):
        online = Online(unit_chain(12), task(unit_chain(12), 0.5, "local"))
        found = []
        for number, events in enumerate(online):
            found += [event.id for event in events if event.kind is EventKind.EVICT]
            if number < 24 and online.status is None:
                online.reprice(number, prices(number))
        return found

    assert evicted(lambda number: 1.0) != evicted(lambda number: 100.0 if number % 2 else 1.0)
