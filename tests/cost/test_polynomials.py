"""Error functions against XLA's buffers: `erfc` becomes a polynomial of many instructions, `erf` is one instruction."""

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
WIDTH, WIDER = 512, 2048


def by_erf(x):
    return x * (1 + jax.lax.erf(x * 0.7071)) * 0.5


def exact_gelu(x):
    return jax.nn.gelu(x, approximate=False)  # by erfc


def blocks(activation):
    def loss(parameters, x):
        for wide, bias, narrow in parameters:
            x = x + activation(x @ wide + bias) @ narrow
        return jnp.square(x.astype(jnp.float32)).mean()

    return jax.value_and_grad(loss)


@needs_gpu_target
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize(
    ("activation", "strategy", "rows"),
    [
        (exact_gelu, "none", (8192,)),
        (exact_gelu, "full", (8192,)),
        (exact_gelu, "none", (64, 128)),
        (exact_gelu, "full", (64, 128)),
        (by_erf, "none", (8192,)),
    ],
)
def test_predicted_memory_is_that_of_the_compiled_step(activation, strategy, rows, dtype):
    def spec(*shape):
        return jax.ShapeDtypeStruct(shape, dtype)

    parameters = [(spec(WIDTH, WIDER), spec(WIDER), spec(WIDER, WIDTH))] * 3
    planner = Planner(blocks(activation), parameters, spec(*rows, WIDTH), target="h200")
    plan = solve(planner.problem, strategy)
    compiled = planner.measure(plan).footprint
    assert plan.predicted.temp_bytes == pytest.approx(compiled.temp_bytes, rel=0.06)
