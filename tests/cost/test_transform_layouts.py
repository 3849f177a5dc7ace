"""Rule 5 of `layout`, against XLA's kernels: Fourier transforms decide how products beside them read and are read."""

import jax
import jax.numpy as jnp
import pytest

from jaxckpt import Planner
from jaxckpt.cost import fuse, replay
from jaxckpt.cost.rates import arithmetic_costs
from jaxckpt.ir import GraphPlan
from jaxckpt.machine import Target, targets
from jaxckpt.schedule import Run, schedule
from jaxckpt.solve import solve
from jaxckpt.trace import trace_step

needs_gpu_target = pytest.mark.skipif(
    not any(status.name == "h200" and status.usable for status in targets()),
    reason="needs the CUDA plugin: pip install 'jaxckpt[gpu-targets]'",
)


def step(weights, x):
    def layer(x, weight, bias):
        spectrum = 2 * jnp.fft.rfft2(x, axes=(1, 2))
        return jax.nn.relu(jnp.fft.irfft2(spectrum, s=x.shape[1:3], axes=(1, 2)) + x @ weight + bias)

    def loss(weights):
        hidden = x
        for weight, bias in weights:
            hidden = layer(hidden, weight, bias)
        return jnp.square(hidden).mean()

    return jax.grad(loss)(weights)


def specs(width=64, size=128, layers=3):
    spec = jax.ShapeDtypeStruct
    weights = [(spec((width, width), jnp.float32), spec((width,), jnp.float32))] * layers
    return weights, spec((32, size, size, width), jnp.float32)


@pytest.fixture(scope="module")
def graph():
    return trace_step(step, *specs()).graph


def test_products_of_the_forward_pass_are_no_librarys(graph):
    """Their operands are transposed on the way, but for the first product, whose operand is an argument."""
    plain = fuse(graph, Target("h200").rates).rules.products.plain
    forward = [op.id for op in graph.ops if op.primitive == "dot_general" and op.phase.value == "forward"]
    assert [op in plain for op in forward] == [True, False, False]


def test_the_gradient_of_a_bias_is_no_part_of_a_kernel_that_transposes(graph):
    rates = Target("h200").rates
    laid_out = schedule(graph, GraphPlan(fingerprint=""))
    played = replay(graph, laid_out, fusion=fuse(graph, rates), arithmetic=arithmetic_costs(graph, rates), rates=rates)
    read_s = 32 * 128 * 128 * 64 * 4 / rates.memory_bandwidth_bytes_per_s
    sums = [
        seconds
        for run, seconds in zip(played.steps, played.seconds, strict=True)
        if isinstance(run, Run) and graph.ops[run.op].primitive == "reduce_sum" and graph.values[run.op].shape != ()
    ]
    assert sum(seconds > read_s for seconds in sums) >= 2


@needs_gpu_target
@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="jax 0.10.2 makes more kernels that transpose")
def test_predicted_seconds_are_those_of_the_compiled_step():
    planner = Planner(step, *specs(), target="h200")
    plan = solve(planner.problem, "none")
    assert plan.predicted.step_s == pytest.approx(planner.measure(plan).footprint.step_s, rel=0.1)
