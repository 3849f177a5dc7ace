"""Rule 5 of `fusion`, against XLA's kernels: the passes over the scores of attention that compute figures of rows."""

import jax
import jax.numpy as jnp
import pytest

from jaxckpt import Planner
from jaxckpt.hlo import Part
from jaxckpt.ir import Kind, Phase, Recompute, Save
from jaxckpt.machine import targets
from jaxckpt.schedule import Run
from tests.residuals import residuals

needs_gpu_target = pytest.mark.skipif(
    not any(status.name == "h200" and status.usable for status in targets()),
    reason="needs the CUDA plugin: pip install 'jaxckpt[gpu-targets]'",
)
BATCH, TOKENS, HEADS, WIDTH = 8, 1024, 12, 64
SCORES = (BATCH, HEADS, TOKENS, TOKENS)
SCORES_BYTES = 2 * BATCH * HEADS * TOKENS**2


def attention(parameters, x):
    q, k, v = (jnp.einsum("btw,whd->bthd", x, parameters[name]) for name in "qkv")
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)
    weights = jax.nn.softmax(scores, axis=-1).astype(jnp.bfloat16)
    return jnp.square(jnp.einsum("bhqk,bkhd->bqhd", weights, v).astype(jnp.float32)).mean()


def attention_with_dropout(parameters, x, key):
    q, k, v = (jnp.einsum("btw,whd->bthd", x, parameters[name]) for name in "qkv")
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)
    weights = jax.nn.softmax(scores, axis=-1).astype(jnp.bfloat16)
    kept = jnp.where(jax.random.bernoulli(key, 0.9, weights.shape), weights / 0.9, 0)
    return jnp.square(jnp.einsum("bhqk,bkhd->bqhd", kept, v).astype(jnp.float32)).mean()


def specs():
    weight = jax.ShapeDtypeStruct((HEADS * WIDTH, HEADS, WIDTH), jnp.bfloat16)
    return dict.fromkeys("qkv", weight), jax.ShapeDtypeStruct((BATCH, TOKENS, HEADS * WIDTH), jnp.bfloat16)


@pytest.fixture(scope="module")
def planner():
    return Planner(jax.value_and_grad(attention), *specs(), target="h200")


def compiled_passes(planner, plan):
    """Kernels that read the scores and write a figure per row, in XLA's program."""
    memory = planner.measure(plan).footprint.memory
    reading = (k for k in memory.kernels if SCORES_BYTES <= k.traffic_bytes < 1.5 * SCORES_BYTES)
    return sum(k.op in ("reduce_max", "reduce_sum") for k in reading)


def predicted_passes(planner, plan):
    """The same as `cost` predicts it."""
    graph, replayed = planner.graph, planner.problem.replay(plan)
    timed = zip(replayed.steps, replayed.seconds, strict=True)
    ops = (graph.ops[step.op] for step, seconds in timed if isinstance(step, Run) and seconds)
    return sum(op.kind is Kind.REDUCTION and graph.values[op.reads[0]].shape == SCORES for op in ops)


def plan_with(planner, saved):
    """The plan that saves those residuals for each pair or row of the scores that some primitives write."""
    graph = planner.graph
    wide = [r.value for r in residuals(graph) if graph.values[r.value].shape[:3] == SCORES[:3]]
    decisions = {v: Save() if graph.ops[graph.producer[v]].primitive in saved else Recompute() for v in wide}
    return planner.problem.plan(decisions, (0,), "by hand")


@needs_gpu_target
@pytest.mark.parametrize(
    ("saved", "passes"),
    [
        (("dot_general", "convert_element_type"), 0),  # only the backward reads the figures of rows: one kernel
        (("dot_general",), 1),  # the weights are computed again, and so is the sum, with the maximum in its kernel
    ],
)
def test_passes_over_recomputed_scores(planner, saved, passes):
    plan = plan_with(planner, saved)
    assert compiled_passes(planner, plan) == passes
    assert predicted_passes(planner, plan) == passes


@needs_gpu_target
def test_a_maximum_of_rows_is_computed_with_their_sum(planner):
    plan = planner.problem.plan({}, (0,), "none")
    assert compiled_passes(planner, plan) == 1
    assert predicted_passes(planner, plan) == 1


def compiled_backward(planner, plan):
    """Kernels of the backward besides products that read and write at least as much as the scores, in XLA's program."""
    kernels = planner.measure(plan).footprint.memory.kernels
    loops = (k for k in kernels if k.part is Part.BACKWARD and not k.matmul_flops)
    return sum(k.traffic_bytes >= 2 * SCORES_BYTES for k in loops)


def predicted_backward(planner, plan):
    """The same as `cost` predicts it."""
    graph, replayed, rates = planner.graph, planner.problem.replay(plan), planner.problem.rates
    timed = zip(replayed.steps, replayed.seconds, strict=True)
    wide = (step for step, s in timed if isinstance(step, Run) and s >= rates.kernel_s(2 * SCORES_BYTES))
    ops = (graph.ops[step.op] for step in wide)
    return sum(op.phase is Phase.BACKWARD and op.kind is not Kind.CONTRACTION for op in ops)


@needs_gpu_target
@pytest.mark.parametrize(("draws_twice", "kernels"), [(True, 2), (False, 1)])
def test_a_kernel_that_holds_rows_draws_no_random_bits(draws_twice, kernels):
    """A mask that the backward draws is applied in a kernel in front of that of the rows; a saved one in this."""
    step = jax.value_and_grad(attention_with_dropout)
    planner = Planner(step, *specs(), jax.ShapeDtypeStruct((), jax.random.key(0).dtype), target="h200")
    graph = planner.graph
    wide = [r.value for r in residuals(graph) if graph.values[r.value].shape == SCORES]
    saved = ("dot_general", "select_n")
    decisions = {v: Save() if graph.ops[graph.producer[v]].primitive in saved else Recompute() for v in wide}
    plan = planner.problem.plan(decisions if draws_twice else {}, (0,), "by hand")
    assert compiled_backward(planner, plan) == kernels
    assert predicted_backward(planner, plan) == kernels
