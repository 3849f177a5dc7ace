"""Which updates may run before the backward is over, and in which order."""

import jax
import jax.numpy as jnp
import optax

from jaxckpt.ir import GraphPlan, Phase, Recompute, Save
from jaxckpt.schedule import Barrier, Run, schedule
from jaxckpt.schedule.updates import LARGE_BYTES, EarlyUpdates
from jaxckpt.trace import trace_step
from tests.graphs import Builder

WIDTH = 1024
OPTIMISER = optax.adamw(1e-3)


def step(weights, state, x):
    def loss(weights):
        hidden = x
        for weight, bias in weights:
            hidden = jnp.tanh(hidden @ weight + bias)
        return jnp.square(hidden).mean()

    changes, state = OPTIMISER.update(jax.grad(loss)(weights), state, weights)
    return optax.apply_updates(weights, changes), state


def early_updates():
    weights = [(jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32), jax.ShapeDtypeStruct((WIDTH,), jnp.float32))] * 4
    state = jax.eval_shape(OPTIMISER.init, weights)
    graph = trace_step(step, weights, state, jax.ShapeDtypeStruct((64, WIDTH), jnp.float32)).graph
    return graph, EarlyUpdates(graph)


def test_each_update_is_due_once_behind_its_gradients_and_what_it_needs():
    graph, updates = early_updates()
    due = dict(reversed(pair) for pair in updates.due)
    assert len(due) == len(updates.due)
    assert [after for after, _ in updates.due] == sorted(due.values())
    for op, after in due.items():
        made = [graph.producer[value] for value in graph.ops[op].reads]
        assert all(due[producer] <= after for producer in made if producer in graph.updates)
        assert all(producer <= after for producer in made if producer is not None and producer not in graph.updates)


def test_what_reads_no_gradient_is_due_with_the_first_update_that_needs_it():
    graph, updates = early_updates()
    due = dict(reversed(pair) for pair in updates.due)
    of_no_gradient = [op for op in due if updates.after[op] < 0]
    assert len({due[op] for op in of_no_gradient}) > 1
    for op in of_no_gradient:
        readers = {reader for value in graph.ops[op].writes for reader in graph.readers[value]}
        assert due[op] == min(due[reader] for reader in readers)


def test_updates_of_large_results_are_some_of_all_in_the_same_order():
    graph, updates = early_updates()
    chosen = set(updates.due_of_large_results)
    assert [each for each in updates.due if each in chosen] == list(updates.due_of_large_results)
    left_out = {op for _, op in set(updates.due) - chosen}
    written = {value for op in left_out for value in graph.ops[op].writes}
    assert all(graph.values[v].size_bytes < LARGE_BYTES for v in written.intersection(graph.outputs))
    assert written.intersection(graph.outputs)


def headed(*, drop_in_stage_of_head: bool):
    """A dropped activation before a head whose weight the backward reads behind its gradient."""
    build = Builder()
    x, weight = build.input(4000), build.input(LARGE_BYTES)
    kept = build.op("dot_general", x, size_bytes=4000)
    dropped = build.op("tanh", kept, size_bytes=4000)
    logits = build.op("dot_general", dropped, weight, size_bytes=4000)
    last = build.op("exp", logits, size_bytes=4000)
    cotangent = build.op("dot_general", last, size_bytes=4000, phase=Phase.BACKWARD)
    gradient = build.op("dot_general", cotangent, x, size_bytes=LARGE_BYTES, phase=Phase.BACKWARD)
    before = build.op("dot_general", cotangent, weight, size_bytes=4000, phase=Phase.BACKWARD)
    scaled = build.op("mul", before, dropped, size_bytes=4000, phase=Phase.BACKWARD)
    earlier = build.op("dot_general", scaled, x, size_bytes=4000, phase=Phase.BACKWARD)
    new = build.op("add", weight, gradient, size_bytes=LARGE_BYTES, phase=Phase.UPDATE)
    graph = build.graph(new, earlier, donated=[weight])
    decisions = {kept: Save(), dropped: Recompute(), logits: Save(), last: Recompute()}
    if not drop_in_stage_of_head:
        decisions[last] = Save()
    stages = 0, graph.producer[logits]
    plan = GraphPlan(fingerprint=graph.fingerprint, decisions=decisions, stages=stages)
    return gradient, before, new, schedule(graph, plan)


def test_an_update_waits_for_the_backward_to_read_its_parameter():
    gradient, before, new, laid_out = headed(drop_in_stage_of_head=False)
    ordering = [s for s in laid_out.steps if isinstance(s, Barrier) and {gradient, before} <= set(s.reads)]
    assert len(ordering) == 1
    update = next(step for step in laid_out.steps if isinstance(step, Run) and new in step.writes)
    assert update.reads[1] in ordering[0].writes
    stages = [step for step in laid_out.steps if isinstance(step, Barrier) and new in step.reads]
    assert len(stages) == 1, "the new parameter passes the barrier of the stage behind it"


def test_an_update_does_not_wait_where_the_parameter_passes_the_barrier_of_its_stage():
    gradient, _, new, laid_out = headed(drop_in_stage_of_head=True)
    assert all(gradient not in step.reads for step in laid_out.steps if isinstance(step, Barrier))
    assert any(new in step.reads for step in laid_out.steps if isinstance(step, Barrier))
