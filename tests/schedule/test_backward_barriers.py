"""Which ops of the backward stand behind a barrier of a stage."""

import functools

import jax
import jax.numpy as jnp

import jaxckpt
from jaxckpt import Planner
from jaxckpt.schedule import Barrier, Run, schedule
from jaxckpt.solve import Problem, solve
from jaxckpt.trace import trace_step
from tests.graphs import RATES
from tests.planner.test_planner import needs_compiler


def biased_layers(wrap, *, width, rows):
    """A step of five layers that end with a bias: its gradient is the sum over the cotangent of the layer's result."""

    @wrap
    def layer(h, params):
        weight, bias = params
        return h + jnp.tanh(h @ weight) + bias

    def loss(params, x):
        return jnp.mean(functools.reduce(layer, params, x) ** 2)

    params = [tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((width, width), (width,)))] * 5
    return jax.value_and_grad(loss), params, jax.ShapeDtypeStruct((rows, width), jnp.float32)


def test_sums_over_a_cotangent_run_where_the_rest_of_its_layer_does():
    graph = trace_step(*biased_layers(lambda layer: layer, width=64, rows=1024)).graph
    steps = schedule(graph, solve(Problem(graph=graph, rates=RATES), "layers")).steps
    barriers = [at for at, step in enumerate(steps) if isinstance(step, Barrier) and step.is_in_backward]
    assert len(barriers) == 5
    for at in barriers[1:]:  # the first one passes the loss
        behind = [step for step in steps[at + 1 :] if isinstance(step, Run) and not step.is_clone][:4]
        summed, *_, other = (step for step in behind if steps[at].trigger in step.reads)
        assert [graph.ops[step.op].primitive for step in (summed, other)] == ["reduce_sum", "mul"]
        assert steps[steps.index(summed) - 1].is_clone


@needs_compiler
def test_layers_that_end_with_a_bias_are_not_slower_than_with_checkpoints():
    by_rule = jaxckpt.footprint(*biased_layers(jax.checkpoint, width=512, rows=16384), target="h200")
    step, *args = biased_layers(lambda layer: layer, width=512, rows=16384)
    plan = Planner(step, *args, target="h200").plan(budget=by_rule.total_bytes)
    assert plan.footprint.total_bytes <= by_rule.total_bytes
    assert plan.footprint.step_s <= 1.005 * by_rule.step_s
