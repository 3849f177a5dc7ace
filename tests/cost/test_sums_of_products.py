"""A product with a vector is a sum that fuses with what it reads, where XLA makes one of it."""

import jax
import jax.numpy as jnp
import pytest

from jaxckpt.compiler import compile_step
from jaxckpt.ir import Kind
from jaxckpt.machine import Target, targets
from jaxckpt.trace import trace_step

needs_gpu_target = pytest.mark.skipif(
    not any(status.name == "h200" and status.usable for status in targets()),
    reason="needs the CUDA plugin: pip install 'jaxckpt[gpu-targets]'",
)
ROWS = 65536


def scores(x, vector):
    return jnp.tanh(x) @ vector


def heads(x, vector):
    return jnp.einsum("ehd,hd->eh", jnp.tanh(x), vector)


@needs_gpu_target
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    ("function", "shapes", "is_sum"),
    [
        (scores, ((ROWS, 64), (64,)), True),
        (scores, ((ROWS, 64), (64, 1)), True),
        (scores, ((ROWS, 64), (64, 8)), False),
        (scores, ((ROWS, 512), (512,)), False),
        (scores, ((ROWS, 512), (512, 1)), False),
        (heads, ((ROWS, 8, 16), (8, 16)), True),
    ],
)
def test_kinds_are_those_that_xla_compiles(function, shapes, is_sum, dtype):
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    kernels = compile_step(function, *arguments, target=Target("h200")).footprint.memory.kernels
    assert (not any(kernel.matmul_flops for kernel in kernels)) is is_sum

    def step(vector, x):
        return jax.grad(lambda vector: jnp.sum(jnp.sin(function(jnp.cos(x), vector))))(vector)

    x, vector = arguments
    graph = trace_step(step, vector, x).graph
    product = next(op for op in graph.ops if op.primitive == "dot_general")
    assert (product.kind is Kind.REDUCTION) is is_sum
    assert product.flops == 2 * graph.elements(product.writes[0]) * shapes[0][-1]
