"""One battery for every rule in every kind of memory; then what each option is for."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from jaxckpt.dynamic import (
    EVICTORS,
    MEMORIES,
    Call,
    Dealloc,
    EventKind,
    Evictor,
    Fit,
    Memory,
    Mode,
    Program,
    Search,
    Size,
    Status,
    Task,
    Tensor,
    UnknownEvictorError,
    ablations,
    evictor,
    sampled,
    simulate,
    unit_chain,
    unlimited_bytes,
)
from jaxckpt.dynamic.engine import advance
from jaxckpt.dynamic.program import Constant, Keep, Release, RunCall
from jaxckpt.dynamic.state import layout, machine_of
from tests.dynamic.programs import programs

RULES = {rule.name: rule for rule in (*EVICTORS.values(), *ablations(), sampled("dtr_eq"), sampled("dte"))}
WINDOWS = {Mode.HARD, Mode.HINT}


def memories(mode):
    return st.builds(
        Memory,
        mode=st.just(mode),
        dealloc=st.sampled_from(Dealloc),
        fit=st.sampled_from(Fit),
        groups=st.sampled_from([1, 2, 4]),
        in_place=st.booleans(),
        drops_recomputed=st.booleans(),
    )


def runs_of(found):
    return [event.id for event in found.events if event.kind is EventKind.RUN]


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@settings(max_examples=6)
@given(data=st.data(), program=programs(donated=True, once=True), share=st.floats(0.4, 1))
def test_every_rule_in_every_memory_keeps_its_promises(rule, data, program, share):
    modes = [mode for mode in Mode if rule.search is not Search.WINDOW or mode in WINDOWS]
    memory = data.draw(memories(data.draw(st.sampled_from(modes))))
    budget = max(1, int(unlimited_bytes(program) * share))
    found = simulate(program, budget=budget, evictor=rule, memory=memory, record=True)
    assert replace(found, run_s=0, search_s=0) == replace(
        simulate(program, budget=budget, evictor=rule, memory=memory, record=True), run_s=0, search_s=0
    ), "the same every time"
    assert bool(found.reason) == (not found.ok)
    runs = runs_of(found)
    assert found.operations == 1 + len(runs) and found.recomputations == len(runs) - len(set(runs))
    assert all(runs.count(i) <= 1 for i, call in enumerate(program.calls) if call.once), "once is once"
    assert sum(event.kind is EventKind.EVICT for event in found.events) >= found.forced_evictions
    if memory.mode in (Mode.COUNTED, Mode.HARD):
        assert found.peak_bytes <= budget
    if found.ok:
        assert set(runs) == set(range(len(program.calls)))
        check_events(program, found)
    assert found.status is not Status.LOST, "nothing that is needed is freed for good"


def check_events(program, found):
    """Replays what is said to have happened: operands are there when a call runs, results are there at the end."""
    there = {each.tensor for each in program.statements if isinstance(each, Constant)}
    storage = program.storage
    for event in found.events:
        if event.kind is EventKind.RUN:
            call = program.calls[event.id]
            assert {storage[t] for t in call.reads} <= there
            there |= {storage[t] for t in call.writes}
        else:
            assert event.id in there
            there.discard(event.id)
    assert {storage[each.tensor] for each in program.statements if isinstance(each, Keep)} <= there


@pytest.mark.parametrize("rule", ["lru", "size", "local", "dtr_eq"])
def test_what_a_lost_view_is_computed_from_stays(rule):
    """The last call recomputes the storage of t1, and not its view t2, which is computed from t0 too."""
    sizes = [("t0", 1, None), ("t1", 2, None), ("t2", 0, 1), ("t3", 2, None), ("t4", 4, None), ("t5", 1, None)]
    links = [((), (0,)), ((), (1,)), ((1, 0), (2,)), ((2,), (3,)), ((), (4,)), ((1,), (5,))]
    program = Program(
        tensors=tuple(Tensor(name=name, size_bytes=size, view_of=base) for name, size, base in sizes),
        calls=tuple(
            Call(name=f"call{i}", price=1, reads=reads, writes=writes, once=not i)
            for i, (reads, writes) in enumerate(links)
        ),
        statements=(
            *(RunCall(call=call) for call in range(5)),
            Release(tensor=4),
            RunCall(call=5),
            Release(tensor=0),
            Keep(tensor=3),
        ),
    )
    found = simulate(program, budget=6, evictor=rule, memory=Memory(dealloc=Dealloc.BANISH))
    assert found.ok and found.recomputations >= 3


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_without_need_nothing_is_evicted_or_run_again(rule):
    memory = Memory(mode=Mode.HARD) if rule.search is Search.WINDOW else Memory()
    for budget in (None, 17):
        found = simulate(unit_chain(16), budget=budget, evictor=rule, memory=memory)
        assert found.ok and not found.forced_evictions and found.operations == 33 and found.overhead == 1


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_too_little_is_a_result_with_a_reason(rule):
    memory = Memory(mode=Mode.HARD) if rule.search is Search.WINDOW else Memory()
    found = simulate(unit_chain(8), budget=2, evictor=rule, memory=memory)
    assert found.status is Status.OUT_OF_MEMORY
    assert "needs 1 B" in found.reason and "out of memory" in str(found)


def test_thrashing_is_a_result_with_a_reason():
    found = simulate(unit_chain(64), budget=7, evictor="lru", limit=2)
    assert found.status is Status.THRASH
    assert found.recompute_price > 256 and "recomputations" in found.reason


def test_what_runs_for_nothing_is_given_up_by_its_number():
    free = replace(unit_chain(64), calls=tuple(replace(call, price=0) for call in unit_chain(64).calls))
    assert simulate(free, budget=7, evictor="lru", limit=2).status is Status.THRASH


def test_an_unknown_rule_is_an_error_that_names_all():
    with pytest.raises(UnknownEvictorError, match="dtr_eq"):
        simulate(unit_chain(4), evictor="dtt")
    assert evictor("coop").size is Size.ONE


def test_several_budgets_run_in_processes_of_their_own():
    chain = unit_chain(64)
    apart = simulate(chain, budget=[7, 16, 0.5], evictor="dtr_eq", processes=2)
    alone = simulate(chain, budget=[7, 16, 0.5], evictor="dtr_eq", processes=1)
    assert [s.operations for s in apart] == [s.operations for s in alone]
    assert [s.operations for s in apart][:2] == [258, 178]


def test_the_grid_has_sixteen_rules_of_which_one_is_random():
    grid = ablations()
    assert len(set(grid)) == 16
    assert sum(rule.name == "none" for rule in grid) == 1
    assert simulate(unit_chain(64), budget=16, evictor=grid[0]).operations == 178


def rows(*sizes, price=1.0, **facts):
    """One call for each size, none of which reads anything; then one that needs as much as the first two have."""
    tensors = tuple(Tensor(name=f"t{i}", size_bytes=size) for i, size in enumerate(sizes))
    calls = tuple(Call(name="make", price=price, reads=(), writes=(i,), **facts) for i in range(len(sizes)))
    return Program(tensors=tensors, calls=calls, statements=tuple(RunCall(i) for i in range(len(sizes))))


def evicted(found):
    return [event.id for event in found.events if event.kind is EventKind.EVICT]


def test_coop_evicts_neighbours_and_dtr_what_is_stale():
    program = rows(2, 3, 2, 3, 2, 5)
    memory = Memory(mode=Mode.HARD)
    window = simulate(program, budget=12, evictor="coop", memory=memory, record=True)
    assert evicted(window) == [0, 1] and window.searches == 1
    size = simulate(program, budget=12, evictor="size", memory=memory, record=True)
    assert evicted(size)[:2] == [3, 1], "the largest, the later one first"
    assert window.forced_evictions < size.forced_evictions


def test_dte_prefers_what_lies_beside_free_memory():
    # a b c d fill the memory; b is released, so a and c have free bytes beside them, d has none.
    tensors = tuple(Tensor(name=n, size_bytes=s) for n, s in (("a", 4), ("b", 2), ("c", 4), ("d", 4), ("e", 6)))
    calls = tuple(Call(name="make", price=1, reads=(), writes=(i,)) for i in range(5))
    program = Program(tensors=tensors, calls=calls, statements=(*map(RunCall, range(4)), Release(1), RunCall(4)))
    rule = replace(EVICTORS["dte"], offset=1.0, by_bytes=False)
    found = simulate(program, budget=14, evictor=rule, memory=Memory(mode=Mode.HARD), record=True)
    assert evicted(found) == [1, 0], "released, then the stalest that has the free bytes beside it"
    alone = simulate(
        program,
        budget=14,
        evictor=replace(rule, size=Size.BYTES, staleness=0),
        record=True,
        memory=Memory(mode=Mode.HARD),
    )
    assert evicted(alone)[1] == 3, "without them the latest of equals"


def test_a_planner_knowing_the_next_use_is_no_worse_on_a_chain():
    planner = simulate(unit_chain(64), budget=16, evictor="dte_static", memory=Memory())
    assert planner.ok and planner.operations <= simulate(unit_chain(64), budget=16, evictor="lru").operations


def test_what_is_small_stays():
    rule = replace(EVICTORS["lru"], least_bytes=3)
    found = simulate(rows(2, 3, 2, 3, 3), budget=11, evictor=rule, record=True)
    assert evicted(found) == [1]


def test_a_hint_may_be_exceeded_and_a_soft_budget_by_one_op():
    program = rows(4, 4, 4, 4, once=True)
    for mode in (Mode.HINT, Mode.SOFT):
        found = simulate(program, budget=8, evictor="lru", memory=Memory(mode=mode))
        assert found.ok and found.peak_bytes == 16, "nothing may go, and it goes on"
    assert simulate(program, budget=8, evictor="lru").status is Status.OUT_OF_MEMORY
    soft = simulate(rows(4, 4, 4, 4), budget=8, evictor="lru", memory=Memory(mode=Mode.SOFT))
    assert soft.peak_bytes == 12
    assert simulate(rows(4, 4, 4, 4), budget=8, evictor="lru", memory=Memory(mode=Mode.HINT)).peak_bytes == 8


def test_fragmentation_is_what_is_free_when_a_request_is_refused():
    program = Program(
        tensors=tuple(Tensor(name=n, size_bytes=s) for n, s in (("a", 3), ("b", 3), ("c", 3), ("d", 5))),
        calls=tuple(Call(name="make", price=1, reads=(), writes=(i,)) for i in range(4)),
        statements=(RunCall(0), RunCall(1), RunCall(2), Release(0), Release(2), RunCall(3)),
    )
    found = simulate(program, budget=10, evictor="lru", memory=Memory(mode=Mode.HARD))
    assert found.ok and found.refused == 1 and found.forced_evictions == 1
    assert (found.free_share, found.largest_free_share) == (0.7, 0.4)
    assert simulate(program, budget=10, evictor="lru").forced_evictions == 0, "without addresses 5 of 7 bytes are free"


def update(*, once=False):
    """A parameter, what is computed from it, and its new state."""
    return Program(
        tensors=tuple(Tensor(name=n, size_bytes=s) for n, s in (("w", 4), ("y", 4), ("w2", 4), ("z", 4))),
        calls=(
            Call(name="use", price=1, reads=(0,), writes=(1,)),
            Call(name="update", price=1, reads=(0,), writes=(2,), replaces=(0,), once=once),
            Call(name="read", price=1, reads=(1, 2), writes=(3,)),
        ),
        statements=(Constant(0, lent=False), RunCall(0), RunCall(1), Release(0), RunCall(2), Keep(2), Keep(3)),
    )


def test_a_new_state_takes_over_the_memory_of_the_old_one():
    hard = Memory(mode=Mode.HARD)
    assert simulate(update(), budget=12, evictor="lru", memory=replace(hard, in_place=True)).taken_over == 1
    assert simulate(update(), budget=12, evictor="lru", memory=replace(hard, in_place=True)).peak_bytes == 12
    copied = simulate(update(), budget=12, evictor="lru", memory=hard)
    assert copied.ok and not copied.taken_over and copied.banished == 1


def test_what_is_computed_from_a_state_that_is_gone_stays():
    found = simulate(update(), budget=11, evictor="lru", memory=Memory(mode=Mode.HARD, in_place=True))
    assert found.status is Status.OUT_OF_MEMORY and "0 storages may be evicted" in found.reason


def test_banished_values_are_freed_for_good_once_not_needed():
    found = simulate(unit_chain(16), budget=17, evictor="dtr", memory=Memory(dealloc=Dealloc.BANISH))
    assert found.ok and found.banished and not found.eager_evictions


def test_coop_is_better_with_each_of_its_parts_on_a_network():
    """Not a theorem: it holds where dense and cheap values alternate, as they do in networks."""
    program, coop = network(), MEMORIES["coop"]
    whole = simulate(program, budget=0.5, evictor="coop", memory=coop)
    one_end = simulate(program, budget=0.5, evictor="coop", memory=replace(coop, groups=1))
    scattered = simulate(program, budget=0.5, evictor="dtr_eq", memory=replace(coop, groups=1))
    assert whole.ok and whole.free_share < 0.1
    assert whole.overhead <= one_end.overhead or not one_end.ok
    assert whole.free_share < scattered.free_share


def network(layers=24):
    """Layers of a dense call, two cheap ones of other sizes; a backward that reads all of them in reverse."""
    tensors, calls, statements, forward = [], [], [], []

    def call(name, price, size, reads, dense=False):
        tensors.append(Tensor(name=name, size_bytes=size))
        calls.append(Call(name=name, price=price, reads=tuple(reads), writes=(len(tensors) - 1,), dense=dense))
        statements.append(RunCall(len(calls) - 1))
        return len(tensors) - 1

    for i in range(layers):
        a = call("conv", 40, 50 + 7 * (i % 3), forward[-1:], dense=True)
        b = call("norm", 3, 50 + 7 * (i % 3), [a])
        forward += [a, b, call("relu", 1, 30 + 11 * (i % 4), [b])]
    gradient = None
    for t in reversed(forward):
        before = gradient
        gradient = call("back", 20, tensors[t].size_bytes, [t] if before is None else [t, before])
        statements += [Release(t)] + ([] if before is None else [Release(before)])
    statements.append(Keep(gradient))
    return Program(tensors=tuple(tensors), calls=tuple(calls), statements=tuple(statements))


def test_a_rule_is_data():
    assert replace(EVICTORS["dtr"], name="dtr") == Evictor(name="dtr")
    assert len({hash(rule) for rule in RULES.values()}) > 20


PLAIN = """
from jaxckpt.dynamic import Memory, Mode, simulate, unit_chain
from jaxckpt.dynamic.compiled import COMPILED
assert not COMPILED
for rule in ("dtr", "dtr_eq", "dte", "coop", "random"):
    found = simulate(unit_chain(64), budget=12, evictor=rule, memory=Memory(mode=Mode.HARD), seed=3)
    print(rule, found.operations, found.forced_evictions, found.looked_at, found.free_share)
"""


@pytest.mark.parametrize("rule", ["dtr", "coop"])
def test_a_compiled_loop_may_be_called_from_python(rule):
    """Only the entrance has a wrapper for that; a call of any other one's machine code would end the process."""
    program, memory = unit_chain(16), Memory(mode=Mode.HARD)
    machine = machine_of(layout(program), Task(budget=6, rule=EVICTORS[rule], memory=memory))
    assert advance(machine, len(machine.statements)) == len(machine.statements)
    assert machine.now[0].recomputations == simulate(program, budget=6, evictor=rule, memory=memory).recomputations > 0


def test_plain_python_counts_what_machine_code_counts():
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    plain = subprocess.run([sys.executable, "-c", PLAIN], env=environment, capture_output=True, text=True, check=True)
    for said in plain.stdout.splitlines():
        rule, *counts = said.split()
        found = simulate(unit_chain(64), budget=12, evictor=rule, memory=Memory(mode=Mode.HARD), seed=3)
        expected = (found.operations, found.forced_evictions, found.looked_at, found.free_share)
        assert counts == [str(count) for count in expected], rule
    assert len(plain.stdout.splitlines()) == 5
