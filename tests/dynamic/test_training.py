"""Several training steps as one program: states are passed on in place, and nothing that is dead stays in memory."""

import jax
import jax.numpy as jnp
import pytest

from jaxckpt.dynamic import (
    Memory,
    Mode,
    program_from_graph,
    program_of_kernels,
    simulate,
    training_of_kernels,
    unlimited_bytes,
)
from jaxckpt.dynamic.from_graph import state_of
from jaxckpt.dynamic.program import Constant, Keep, Release
from jaxckpt.machine import Target
from jaxckpt.solve import Problem
from jaxckpt.trace import trace_step

WIDE = jax.ShapeDtypeStruct((64, 64), jnp.float32)
BATCH = jax.ShapeDtypeStruct((512, 64), jnp.float32)
DEPTH = 8


def loss(ws, x):
    for w in ws:
        x = jnp.sin(jnp.tanh(x @ w))
    return x.sum()


def step(ws, moments, x):
    value, gradients = jax.value_and_grad(loss)(ws, x)
    moments = [0.9 * m + g for m, g in zip(moments, gradients, strict=True)]
    return [w - 0.1 * m for w, m in zip(ws, moments, strict=True)], moments, value


@pytest.fixture(scope="module")
def graph():
    states = [WIDE] * DEPTH
    return trace_step(step, states, states, BATCH, donate_argnums=(0, 1)).graph


@pytest.fixture(scope="module", params=["ops", "kernels"])
def programs(request, graph):
    """One step and three of them."""
    if request.param == "ops":
        return program_from_graph(graph), program_from_graph(graph, steps=3)
    problem = Problem(graph=graph, rates=Target("h200").rates)
    return training_of_kernels(problem, steps=1), training_of_kernels(problem, steps=3)


def test_each_donated_argument_has_a_result_of_its_own(graph):
    state = state_of(graph)
    assert list(state) == [v for v in graph.inputs if v in graph.donated]
    assert len(set(state.values())) == 2 * DEPTH and set(state.values()) <= set(graph.outputs)


def test_three_steps_triple_the_calls_over_the_same_constants(programs):
    one, three = programs
    three.validate()
    assert len(three.calls) == 3 * len(one.calls) and three.base_price == pytest.approx(3 * one.base_price)
    assert three.constant_bytes == one.constant_bytes
    kept, constants = ([s for s in three.statements if isinstance(s, kind)] for kind in (Keep, Constant))
    assert len(constants) == 2 * DEPTH + 1 and len(kept) == 2 * DEPTH + 1, "the states and the loss of the last step"
    released = [s.tensor for s in three.statements if isinstance(s, Release)]
    assert len(released) == len(set(released)), "nothing is released twice"
    assert unlimited_bytes(three) == unlimited_bytes(one)


def test_states_stay_where_they_are_in_coops_memory(programs):
    one, three = programs
    whole = unlimited_bytes(one)
    first, all_of_them = (simulate(p, budget=whole, evictor="coop") for p in (one, three))
    assert first.ok and all_of_them.ok and all_of_them.taken_over == 3 * first.taken_over > 0


@pytest.mark.parametrize("share", [0.5, 0.6, 0.75])
def test_without_addresses_what_fits_once_fits_three_times(programs, share):
    """What a step leaves behind would fill the memory of the next one, were it not freed."""
    one, three = programs
    budget = int(share * unlimited_bytes(one))
    for memory in (Memory(), Memory(drops_recomputed=True)):
        for rule in ("dtr_eq", "lru", "msps"):
            once, thrice = (simulate(p, budget=budget, evictor=rule, memory=memory) for p in (one, three))
            assert (rule, once.ok) == (rule, thrice.ok)
            assert thrice.overhead <= 1.1 * once.overhead


def test_in_coops_memory_too(programs):
    one, three = programs
    for share in (0.6, 0.75):
        once, thrice = (simulate(p, budget=int(share * unlimited_bytes(one)), evictor="coop") for p in (one, three))
        assert once.ok and thrice.ok and thrice.overhead <= 1.1 * once.overhead


def test_kernels_have_their_arguments_in_memory_only_in_training(graph):
    problem = Problem(graph=graph, rates=Target("h200").rates)
    alone, trained = program_of_kernels(problem), training_of_kernels(problem, steps=1)
    assert [c.price for c in alone.calls] == [c.price for c in trained.calls]
    assert alone.constant_bytes == 0 and trained.constant_bytes == graph.argument_bytes
    assert simulate(trained, budget=None, evictor="coop", memory=Memory(mode=Mode.HARD)).ok
