"""An address map says where every value lay at every execution, and agrees with what the simulation counts."""

import pytest
from hypothesis import given, settings, strategies as st

from jaxckpt.dynamic import (
    MEMORIES,
    Memory,
    Mode,
    address_map,
    program_from_graph,
    simulate,
    unit_chain,
    unlimited_bytes,
)
from jaxckpt.trace import trace_step
from tests.dynamic.programs import programs
from tests.dynamic.test_training import BATCH, DEPTH, WIDE, step

HARD = Memory(mode=Mode.HARD)


@settings(max_examples=60)
@given(programs(donated=True, once=True), st.sampled_from(["dtr_eq", "lru", "coop", "coop_by_byte"]), st.floats(0.5, 1))
def test_values_never_overlap_and_what_a_call_makes_is_there(program, rule, share):
    memory = MEMORIES.get(rule, HARD)
    budget = max(1, int(unlimited_bytes(program) * share))
    found = address_map(program, budget=budget, evictor=rule, memory=memory)
    counted = simulate(program, budget=budget, evictor=rule, memory=memory)
    assert found.simulation.operations == counted.operations == 1 + len(found.calls)
    assert len(found.refusals) == counted.refused
    assert all(each.free_bytes <= budget for each in found.refusals)
    owner = program.storage
    for execution, call in enumerate(found.calls):
        there = found.at(execution)
        ends = [each.address + each.size_bytes for each in there]
        assert all(end <= after.address for end, after in zip(ends, there[1:], strict=False))
        assert not ends or ends[-1] <= found.budget_bytes
        inside = {each.tensor for each in there}
        made = {owner[t] for t in program.calls[call].writes if program.tensors[owner[t]].size_bytes}
        pairs = zip(program.calls[call].writes, program.calls[call].replaces, strict=False)
        taken = {new for new, old in pairs if old is not None}
        assert made - taken <= inside


def test_states_lie_still_under_coop_and_wander_under_dtr():
    graph = trace_step(step, [WIDE] * DEPTH, [WIDE] * DEPTH, BATCH, donate_argnums=(0, 1)).graph
    program = program_from_graph(graph, steps=3)
    places = {}
    for rule in ("dtr_eq", "coop"):
        found = address_map(program, budget=0.8, evictor=rule, memory=MEMORIES.get(rule, HARD))
        assert found.simulation.ok
        at_the_end = [r for r in found.at(len(found.calls) - 1) if r.kind == "state"]
        begun = {r.address for r in found.at(0) if r.kind == "state"}
        places[rule] = sum(r.address in begun for r in at_the_end) / len(at_the_end)
    assert places["coop"] == 1 > places["dtr_eq"]


@pytest.mark.parametrize("rule", ["dtr_eq", "coop"])
def test_a_run_that_stops_has_a_map_until_then(rule):
    found = address_map(unit_chain(8), budget=2, evictor=rule, memory=HARD)
    assert not found.simulation.ok and 0 < len(found.calls) < 16 and found.refusals
