"""Which ops of the backward stand behind a barrier of a stage."""

import functools

import jax
import jax.numpy as jnp
import pytest

import jaxckpt
from jaxckpt import Planner
from jaxckpt.cost import fuse
from jaxckpt.cost.fusion_analysis import FusionAnalysis
from jaxckpt.ir import GraphPlan, Phase, Recompute
from jaxckpt.schedule import Barrier, Run, schedule
from jaxckpt.solve import Problem, solve
from jaxckpt.trace import trace_step
from tests.graphs import RATES, Builder
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


@pytest.mark.parametrize("is_broadcast", [True, False])
def test_a_barrier_passes_what_broadcasts_make_a_frontier_of(is_broadcast):
    """As in the gradient of a layer norm. Of two arrays of that size, the frontier itself is written and passed."""
    build = Builder()
    op = functools.partial(build.op, size_bytes=4000, phase=Phase.BACKWARD)
    seed, scale = build.input(4000), build.input(40 if is_broadcast else 4000)
    residual = build.op("sin", seed, size_bytes=4000)
    cotangent = op("dot_general", op("exp", seed))
    scaled = op("mul", cotangent, scale)
    graph = build.graph(op("dot_general", op("mul", scaled, residual)))
    found = schedule(graph, GraphPlan(fingerprint="", decisions={residual: Recompute()}, stages=(0,)))
    (at,) = (i for i, step in enumerate(found.steps) if isinstance(step, Barrier))
    clones = {step.op for step in found.steps[at:] if isinstance(step, Run) and step.is_clone}
    passed = {found.origin[i] for i in found.steps[at].reads}
    trigger = found.steps[at].trigger
    if is_broadcast:
        assert clones == {graph.producer[residual], graph.producer[scaled]}
        assert cotangent in passed
        assert trigger is None
    else:
        assert clones == {graph.producer[residual]}
        assert found.origin[trigger] == scaled
        analysis = FusionAnalysis(fuse(graph).rules, found.steps, found.origin, found.outputs)
        assert trigger in analysis.materialised
