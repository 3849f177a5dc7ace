"""Residual stacks of flat arrays: the same bits, and kernels of a compiled program move fewer bytes."""

import jax.numpy as jnp
import pytest

from benchmarks.strangers.transformers import scanned_parallel_decoder
from jaxckpt import Planner
from jaxckpt.ir import GraphPlan, Recompute, Save
from jaxckpt.ir.regions import LOOP_BOUNDARIES
from jaxckpt.rewrite import rewrite
from jaxckpt.solve import Problem, solve
from jaxckpt.trace import trace_step
from jaxckpt.verifier.interpret import run_one_by_one
from tests.graphs import RATES
from tests.planner.test_planner import needs_compiler
from tests.residuals import residuals
from tests.scanned import X, make_step, over_two_devices, scans, weights

LENGTH = 5
W = weights(LENGTH)
FLAT, SHAPED = (LENGTH, X.size), (LENGTH, *X.shape)


def planned(step, strategy, args=(W, X), **options):
    traced = trace_step(step, *args)
    return rewrite(traced, solve(Problem(graph=traced.graph, rates=RATES), strategy), **options)


def stacks(rewritten):
    """Shapes of what the forward loop stacks for the backward loop."""
    forward, backward = scans(rewritten.jaxpr)
    read = set(backward.invars)
    return {variable.aval.shape for variable in forward.outvars if variable in read}


@pytest.mark.parametrize("strategy", ["dots", "full"])
@pytest.mark.parametrize("reverse", [False, True])
def test_what_the_backward_loop_reads_is_flat(strategy, reverse):
    step = make_step(reverse=reverse)
    traced = trace_step(step, W, X)
    rewritten = planned(step, strategy)
    assert stacks(rewritten) == {FLAT}
    expected, found = (run_one_by_one(jaxpr, W, X) for jaxpr in (traced.jaxpr, rewritten.jaxpr))
    assert all(jnp.array_equal(one, other) for one, other in zip(expected, found, strict=True))


def test_a_step_as_it_is_and_one_for_a_tpu_and_one_on_a_mesh_keep_shapes():
    assert stacks(planned(make_step(), "none")) == {SHAPED}
    assert stacks(planned(make_step(), "dots", for_tpu=True)) == {SHAPED}
    assert stacks(planned(make_step(), "dots", over_two_devices(LENGTH))) == {SHAPED}


def test_a_transposed_product_keeps_its_shape():
    """It is stacked as the product wrote it; to flatten it in the order of its shape would be a copy."""

    def body(x, w):
        return x + jnp.sin(jnp.tanh((x @ w).T)).T, None

    traced = trace_step(make_step(body), W, X)
    graph = traced.graph
    kept = [each.value for each in residuals(graph) if graph.ops[each.op].primitive not in LOOP_BOUNDARIES]
    saved = next(v for v in kept if graph.values[v].shape == X.shape[::-1])
    decisions = {v: Save() if v == saved else Recompute() for v in kept}
    plan = GraphPlan(fingerprint=graph.fingerprint, decisions=decisions, stages=(0,))
    assert stacks(rewrite(traced, plan)) == {FLAT, (LENGTH, *X.shape[::-1])}


@needs_compiler
def test_kernels_of_a_compiled_decoder_move_fewer_bytes(monkeypatch):
    """With shaped residual stacks the product for the gradient of the up projection asks for a transposed one."""

    def traffic_bytes():
        step = scanned_parallel_decoder(width=512, heads=8, layers=4, batch=4, length=512)
        planner = Planner(step, target="h200")
        (dots,) = (plan for plan in planner.simple_rules if plan.strategy == "dots")
        return sum(each.count * each.traffic_bytes for each in planner.measure(dots).footprint.memory.kernels)

    flat_bytes = traffic_bytes()
    monkeypatch.setattr("jaxckpt.rewrite.equations.read_in_other_loops", lambda *_: {})
    assert flat_bytes < 0.99 * traffic_bytes()
