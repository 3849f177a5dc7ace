"""A traced step as a program: one call an op, views without bytes, states that take over donated arguments."""

import jax
import jax.numpy as jnp

from jaxckpt.dynamic import (
    MEMORIES,
    Status,
    eager_seconds,
    program_from_graph,
    program_of_kernels,
    simulate,
    unlimited_bytes,
)
from jaxckpt.dynamic.program import Constant, Keep, Note, Release, RunCall
from jaxckpt.machine import Target
from jaxckpt.solve import Problem
from jaxckpt.trace import trace_step

SHAPE = jax.ShapeDtypeStruct((64, 64), jnp.float32)
BYTES = 64 * 64 * 4


def loss(w, x):
    for _ in range(6):
        x = jnp.sin(jnp.tanh(x @ w).reshape(4, 16, 64)).reshape(64, 64)
    return x.sum()


def adam(state, x):
    """Mean and square of gradients, and the parameters, each updated from its old state."""
    (w, mean, square), g = state, jax.grad(loss)(state[0], x)
    mean, square = 0.9 * mean + 0.1 * g, 0.99 * square + 0.01 * g * g
    return w - 0.1 * mean / (jnp.sqrt(square) + 1e-8), mean, square


def graph_of(step, *args, **options):
    return trace_step(step, *args, **options).graph


def test_a_call_an_op_in_order_and_a_valid_program():
    graph = graph_of(jax.grad(loss), SHAPE, SHAPE)
    program = program_from_graph(graph)
    program.validate()
    assert [call.name for call in program.calls] == [op.primitive for op in graph.ops]
    assert sum(isinstance(each, RunCall) for each in program.statements) == len(graph.ops)
    assert [each.text for each in program.statements if isinstance(each, Note)] == ["BACKWARD"]
    assert sum(isinstance(each, Keep) for each in program.statements) == 1


def test_views_have_no_bytes_unless_they_are_said_to_be_copies():
    graph = graph_of(jax.grad(loss), SHAPE, SHAPE)
    program, copying = program_from_graph(graph), program_from_graph(graph, views=frozenset())
    reshaped = [call.writes[0] for call in program.calls if call.name == "reshape"]
    assert reshaped and all(program.tensors[t].view_of is not None for t in reshaped)
    assert all(copying.tensors[t].size_bytes == BYTES for t in reshaped)
    assert unlimited_bytes(copying) >= unlimited_bytes(program)


def test_all_but_lent_arguments_are_released_after_the_last_read():
    program = program_from_graph(graph_of(jax.grad(loss), SHAPE, SHAPE))
    constants = {each.tensor for each in program.statements if isinstance(each, Constant)}
    released = {each.tensor for each in program.statements if isinstance(each, Release)}
    kept = {each.tensor for each in program.statements if isinstance(each, Keep)}
    assert released >= set(range(len(program.tensors))) - constants - kept
    found = simulate(program, budget=None, evictor="dtr_eq")
    assert found.ok and found.recomputations == 0


def test_new_states_live_in_the_memory_of_donated_arguments():
    graph = graph_of(adam, (SHAPE, SHAPE, SHAPE), SHAPE, donate_argnums=0)
    program = program_from_graph(graph)
    replaced = [old for call in program.calls for old in call.replaces if old is not None]
    assert len(replaced) == 5, "two ops for mean and square, one for the parameters"
    whole = unlimited_bytes(program)
    found = simulate(program, budget=whole, evictor="coop", memory=MEMORIES["coop"])
    assert found.ok and found.taken_over == 5
    lent = program_from_graph(graph_of(adam, (SHAPE, SHAPE, SHAPE), SHAPE))
    assert simulate(lent, budget=None, evictor="coop").taken_over == 0


def test_results_in_donated_memory_leave_room_for_large_requests():
    """They would be pinned here and there in the pool if the first of two updates forbade the second one."""
    graph = graph_of(adam, (SHAPE, SHAPE, SHAPE), SHAPE, donate_argnums=0)
    program = program_from_graph(graph)
    found = simulate(program, budget=0.8, evictor="coop")
    assert found.status is Status.OK and found.taken_over == 5


def test_seconds_of_ops_that_run_alone():
    rates = Target("h200").rates
    graph = graph_of(jax.grad(loss), SHAPE, SHAPE)
    prices = eager_seconds(graph, rates)
    by_name = {op.primitive: price for op, price in zip(graph.ops, prices, strict=True)}
    assert by_name["reshape"] == 0
    assert by_name["dot_general"] >= rates.launch_s + 3 * BYTES / rates.memory_bandwidth_bytes_per_s * 0.99


def test_kernels_are_fewer_than_ops_and_take_predicted_memory():
    problem = Problem(graph=graph_of(adam, (SHAPE, SHAPE, SHAPE), SHAPE, donate_argnums=0), rates=Target("h200").rates)
    program = program_of_kernels(problem)
    program.validate()
    assert 0 < len(program.calls) < len(problem.graph.ops)
    predicted = problem.replay(problem.plan({}, (0,), "none")).peak_bytes
    assert 0.8 * predicted <= unlimited_bytes(program) <= 1.3 * predicted
