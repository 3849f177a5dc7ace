"""Copies in loops: a wait counts in every iteration, a pipelined copy has all of an iteration."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from jaxckpt.cost.clock import StepClock
from jaxckpt.ir import Graph, Offload, Save
from jaxckpt.ir.regions import Loop
from jaxckpt.machine import Target
from jaxckpt.policy import Match, Policy, Rule
from jaxckpt.solve import Offloading, Problem, plan_from_policy
from jaxckpt.trace import trace_step

ITERATIONS, MIB = 5, 2**20


def copies():
    """One MiB a second, in the body of a loop of five iterations that began at second ten."""
    loops = (Loop(id=0, length=ITERATIONS, reverse=False),)
    clock = StepClock(Graph(values=(), ops=(), inputs=(), loops=loops), float(MIB))
    clock.work(10.0)
    clock.end()
    clock.begin(0)
    return clock


def waited_s(clock, *, end=False):
    """Seconds that a step waits, for instance 7 or at the end of an iteration, and the work before it."""
    before = clock.stall_s
    if end:
        clock.end([0])
    else:
        clock.wait(7)
    return clock.stall_s - before


FACTS = {"stack_bytes": 0, "is_pipelined": False}


def test_a_store_is_waited_for_at_the_end_of_its_iteration():
    clock = copies()
    clock.work(ITERATIONS * 1.0)
    clock.store_in_loop(7, 0, 2 * MIB, **FACTS)
    clock.work(ITERATIONS * 0.5)
    assert waited_s(clock) == 0
    clock.work(ITERATIONS * 0.5)
    assert waited_s(clock, end=True) == pytest.approx(ITERATIONS * 1.0)
    assert clock.seconds[-1] == pytest.approx(ITERATIONS * 3.0)


def test_a_pipelined_store_has_until_its_value_is_recomputed():
    clock = copies()
    clock.work(ITERATIONS * 1.5)
    clock.store_in_loop(7, 0, 2 * MIB, **FACTS | {"is_pipelined": True})
    assert clock.stall_s == pytest.approx(ITERATIONS * 0.5)
    clock.work(ITERATIONS * 2.0)
    assert waited_s(clock, end=True) == 0


def test_a_load_is_awaited_where_read_a_pipelined_one_at_the_end():
    for is_pipelined, waited in ((False, 1.0), (True, 0.0)):
        clock = copies()
        clock.load_in_loop(7, 0, 2 * MIB, **FACTS | {"is_pipelined": is_pipelined})
        clock.work(ITERATIONS * 1.0)
        assert waited_s(clock) == pytest.approx(ITERATIONS * waited)
        clock.work(ITERATIONS * (1.0 - waited))
        assert waited_s(clock, end=True) == pytest.approx(0)


def test_copies_of_an_iteration_queue_on_the_link():
    clock = copies()
    clock.load_in_loop(8, 0, MIB, **FACTS)
    clock.load_in_loop(7, 0, MIB, **FACTS)
    assert waited_s(clock) == pytest.approx(ITERATIONS * 2.0)


### In a replay


def step(weights, x):
    def turn(y, each):
        wide = checkpoint_name(jnp.sin(y @ each[0]), "wide")
        return y + (wide * jnp.tanh(wide)) @ each[1], None

    def loss(weights):
        return (jax.lax.scan(turn, x, weights)[0] ** 2).mean()

    return jax.value_and_grad(loss)(weights)


LAYERS, WIDTH, TOKENS = 8, 1024, 8192
VALUE_BYTES = TOKENS * 4 * WIDTH * 2


def predicted(decision, bandwidth=50e9, **offloading):
    described = [(LAYERS, WIDTH, 4 * WIDTH), (LAYERS, 4 * WIDTH, WIDTH), (TOKENS, WIDTH)]
    up, down, x = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in described)
    asked = Offloading(bandwidth_bytes_per_s=bandwidth, **offloading)
    rates = asked.rates(Target("h200").rates)
    problem = Problem(graph=trace_step(step, (up, down), x).graph, rates=rates, offloading=asked)
    policy = Policy(default="recompute", rules=(Rule(match=Match(name="wide"), decision=decision),))
    return plan_from_policy(problem, policy).plan


def test_a_stack_counts_on_the_host_its_slice_on_the_device():
    saved, sent = (predicted(decision).prediction for decision in (Save(), Offload(prefetch=0)))
    assert (saved.host_bytes, sent.host_bytes) == (0, LAYERS * VALUE_BYTES)
    assert saved.temp_bytes - LAYERS * VALUE_BYTES <= sent.temp_bytes <= saved.temp_bytes - (LAYERS - 2) * VALUE_BYTES


def test_every_iteration_waits_for_a_slow_link():
    slow, slower = (predicted(Offload(prefetch=0), bandwidth).prediction for bandwidth in (1e9, 0.5e9))
    copied_s = 2 * LAYERS * VALUE_BYTES / 1e9
    assert slow.stall_s == pytest.approx(copied_s, rel=0.02)
    assert slower.stall_s - slow.stall_s == pytest.approx(copied_s, rel=0.01)
    assert predicted(Offload(prefetch=1), 1e13).prediction.stall_s == 0


def test_pipelining_hides_loads_and_takes_a_slice_more():
    within, pipelined = (predicted(Offload(prefetch=prefetch), 200e9).prediction for prefetch in (0, 1))
    assert pipelined.stall_s < within.stall_s
    assert within.temp_bytes < pipelined.temp_bytes <= within.temp_bytes + 2 * VALUE_BYTES


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_a_prefetch_of_all_copies_yields_to_that_of_a_rule(prefetch):
    plan = predicted(Offload(), prefetch=prefetch)
    assert {d.prefetch for d in plan.decisions.values() if isinstance(d, Offload)} == {prefetch}
    plan = predicted(Offload(prefetch=1), prefetch=prefetch)
    assert {d.prefetch for d in plan.decisions.values() if isinstance(d, Offload)} == {1}


def test_pipelining_is_chosen_only_if_the_peak_stays():
    chosen, within = predicted(Offload()), predicted(Offload(prefetch=0))
    assert chosen.prediction.temp_bytes <= within.prediction.temp_bytes
    assert replace(chosen.prediction, step_s=0.0).host_bytes == within.prediction.host_bytes
    assert all(d.prefetch is not None for d in chosen.decisions.values() if isinstance(d, Offload))
