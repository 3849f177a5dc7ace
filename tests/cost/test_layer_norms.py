"""Rule 5 of `fusion` for layer norms, and rule 1 for tanh, against XLA's kernels."""

import jax
import jax.numpy as jnp
import pytest

from jaxckpt import Planner
from jaxckpt.machine import targets
from jaxckpt.solve import solve

needs_gpu_target = pytest.mark.skipif(
    not any(status.name == "h200" and status.usable for status in targets()),
    reason="needs the CUDA plugin: pip install 'jaxckpt[gpu-targets]'",
)
ROWS, WIDTH, WIDER, LAYERS = 65536, 256, 512, 3


def mean_of_rest(x):
    return x - x.mean(-1, keepdims=True), x.var(-1, keepdims=True)


def mean_of_squares(x):
    mean = x.mean(-1, keepdims=True)
    return x - mean, jnp.square(x).mean(-1, keepdims=True) - jnp.square(mean)


def blocks(statistics):
    def loss(parameters, x):
        for scale, shift, wide, narrow in parameters:
            centred, variance = statistics(x.astype(jnp.float32))
            normalised = centred * jax.lax.rsqrt(variance + 1e-5) * scale + shift
            x = x + jnp.tanh(normalised.astype(x.dtype) @ wide) @ narrow
        return jnp.square(x.astype(jnp.float32)).mean()

    return jax.value_and_grad(loss)


def planner_of(statistics, dtype):
    def spec(*shape, dtype=dtype):
        return jax.ShapeDtypeStruct(shape, dtype)

    layer = (*[spec(WIDTH, dtype=jnp.float32)] * 2, spec(WIDTH, WIDER), spec(WIDER, WIDTH))
    return Planner(blocks(statistics), [layer] * LAYERS, spec(ROWS, WIDTH), target="h200")


@needs_gpu_target
@pytest.mark.parametrize(
    ("statistics", "dtype", "strategy"),
    [
        (mean_of_rest, jnp.float32, "none"),  # every kernel that needs the statistics has the rows
        (mean_of_rest, jnp.bfloat16, "none"),  # the gradient of the scale adds up what a kernel with rows wrote
        (mean_of_rest, jnp.float32, "elementwise_recomputed"),  # the product behind tanh applies it
        (mean_of_squares, jnp.bfloat16, "none"),  # the statistics are in memory
    ],
)
def test_predicted_seconds_are_those_of_the_compiled_step(statistics, dtype, strategy):
    planner = planner_of(statistics, dtype)
    plan = solve(planner.problem, strategy)
    compiled = planner.measure(plan).footprint
    assert plan.predicted.step_s == pytest.approx(compiled.step_s, rel=0.06)
