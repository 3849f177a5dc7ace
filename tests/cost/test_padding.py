"""Copies of operands of matrix products, in the model and in compiled programs."""

import re

import jax
import jax.numpy as jnp
import pytest

from jaxckpt import Planner
from jaxckpt.compiler import lower_flat
from jaxckpt.cost.padding import padding_bytes, parts_bytes, parts_of_sum, sums_padded_parts
from jaxckpt.ir import Phase
from jaxckpt.machine import Target
from tests.cost.test_epilogues import needs_gpu_target, spec
from tests.graphs import Builder


def gradient_of_weight(rows, *, is_read_again):
    """The graph of a product of transposed activations and a cotangent, and the product."""
    build = Builder()
    operands = [build.shaped("neg", build.input(4), shape=(rows, 128)) for _ in range(2)]
    product = build.shaped("dot_general", *operands, shape=(128, 128), flops=2.0 * rows * 128 * 128)
    again = [build.shaped("neg", operands[0], shape=(rows, 128), phase=Phase.BACKWARD)] if is_read_again else []
    graph = build.graph(product, *again)
    return graph, graph.ops[graph.producer[product]]


@pytest.mark.parametrize(("rows", "is_padded"), [(2**17, False), (2**17 + 128, True), (200_000, True)])
def test_a_sum_in_parts_is_padded_where_they_do_not_divide_it(rows, is_padded):
    graph, product = gradient_of_weight(rows, is_read_again=False)
    assert sums_padded_parts(graph, product) is is_padded


@pytest.mark.parametrize(("is_read_again", "copies"), [(False, 0), (True, 1)])
def test_an_operand_that_others_read_is_copied(is_read_again, copies):
    graph, product = gradient_of_weight(200_000, is_read_again=is_read_again)
    assert padding_bytes(graph, product) == copies * 4 * 200_000 * 128


@needs_gpu_target
@pytest.mark.parametrize("rows", [200_000, 20_000, 1_000])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_xla_makes_as_many_parts(rows, dtype):
    def step(w, x):
        return jax.grad(lambda w: jnp.square(x @ w).sum())(w)

    planner = Planner(step, spec(384, 128, dtype=dtype), spec(rows, 384, dtype=dtype), target="h200")
    shapes = [buffer.shape for buffer in planner.unplanned.memory.buffers]
    assert any(set(shape) >= {parts_of_sum(rows, (384, 128)), 384, 128} for shape in shapes)


@needs_gpu_target
@pytest.mark.parametrize(
    "lengths",
    [(256, 768, 256), (256, 768, 512), (256, 256, 2048), (64, 64, 512), (1024, 1024, 1024), (1024, 1024, 2048)],
)
def test_xla_makes_as_many_parts_of_short_sums(lengths):
    rows, columns, contracted = lengths
    specs = spec(rows, contracted), spec(contracted, columns)
    compiled = lower_flat(lambda x, y: (jnp.sin(x) @ y,), specs, target=Target("h200")).compile()
    written = re.findall(rf"f32\[(\d+),{rows},{columns}\]", compiled.executable.as_text())
    assert max(map(int, written), default=1) == parts_of_sum(contracted, (rows, columns))


@needs_gpu_target
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(("rows", "width"), [(8192, 512), (32_768, 256), (16_384, 128), (4096, 256)])
def test_parts_are_written_in_float32_and_read_again(rows, width, dtype):
    def step(w, x):
        return jax.grad(lambda w: jnp.square(x @ w).sum())(w)

    planner = Planner(step, spec(width, width, dtype=dtype), spec(rows, width, dtype=dtype), target="h200")
    graph = planner.graph
    product = next(op for op in graph.ops if op.primitive == "dot_general" and op.phase is Phase.BACKWARD)
    result_bytes = graph.values[product.writes[0]].size_bytes
    traffic_bytes = {k.name: k.traffic_bytes for k in planner.unplanned.memory.kernels}
    (added_bytes,) = (size for name, size in traffic_bytes.items() if "reduce" in name and size > 2 * result_bytes)
    assert parts_bytes(graph, product) + result_bytes == added_bytes


@needs_gpu_target
def test_padded_operands_are_in_memory():
    """As unpadded ones the predicted temporaries were 30% too small."""

    def step(weights, x):
        def loss(weights):
            y = x
            for w in weights:
                y = y + jax.nn.relu((y * w["scale"]) @ w["in"]) @ w["out"]
            return jnp.square(y).sum()

        return jax.grad(loss)(weights)

    layer = {"in": spec(128, 256), "out": spec(256, 128), "scale": spec(128)}
    planner = Planner(step, [layer] * 3, spec(200_000, 128), target="h200")
    predicted_bytes = planner.solver.empty_plan.predicted.temp_bytes
    assert predicted_bytes == pytest.approx(planner.unplanned.temp_bytes, rel=0.12)
