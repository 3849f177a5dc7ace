"""Small arrays, as in the cells of recurrent nets: what XLA computes again in every kernel, and products of few blocks.

Where an expected figure is one of XLA's, the test compiles the same step.
"""

import re

import jax
import jax.numpy as jnp
import pytest

from benchmarks.strangers.recurrent import lstm_cell
from jaxckpt import Planner
from jaxckpt.compiler import compile_step
from jaxckpt.cost import fuse
from jaxckpt.cost.merged_products import merged_products
from jaxckpt.cost.padding import number_of_parts
from jaxckpt.ir import Phase
from jaxckpt.machine import Target
from jaxckpt.solve import solve
from jaxckpt.trace import trace_step
from tests.cost.test_epilogues import needs_gpu_target, spec

RATES = Target("h200").rates


def forward(function, *args):
    """The graph of a function's value and gradient, and the ops of its forward pass."""

    def total(*args):
        return sum(each.sum() for each in jax.tree.leaves(function(*args)))

    graph = trace_step(jax.value_and_grad(total), *args).graph
    return graph, [op for op in graph.ops if op.phase is Phase.FORWARD]


@needs_gpu_target
@pytest.mark.parametrize("activation", ["tanh", "sin", "exp"])
@pytest.mark.parametrize("rows", [2**8, 2**10, 2**12])
@pytest.mark.parametrize("kernels", [2, 3])
def test_an_activation_is_computed_in_each_kernel_if_that_is_quicker_than_a_launch(activation, rows, kernels):
    """Between two kernels there is a product, so that they cannot be one."""

    def function(x, weight, *others):
        activated, out, product = getattr(jax.lax, activation)(x), [], 0.0
        for other in others:
            out.append(activated * other + product)
            product = out[-1] @ weight
        return out, product

    args = spec(rows, 256), spec(256, 256), *[spec(rows, 256)] * kernels
    text = compile_step(function, *args, target="h200").executable.as_text()
    opcode = {"sin": "sine", "exp": "exponential"}.get(activation, activation)
    graph, ops = forward(function, *args)
    (op,) = (op for op in ops if op.primitive == activation)
    size_bytes, storing = graph.size_bytes(op.writes), fuse(graph, RATES).rules.storing
    source_bytes = max(size_bytes, storing.expensive.get(op.id, 0.0))
    is_stored = kernels * size_bytes + storing.launch_bytes <= (kernels - 1) * source_bytes
    assert len(re.findall(rf" {opcode}\(", text)) == (1 if is_stored else kernels)


def gates(x, weight, scale):
    """Normalised rows in three parts, each of which a kernel of its own reads."""
    rows = x @ weight
    rows = rows - rows.mean(-1, keepdims=True)
    rows = scale * rows * jax.lax.rsqrt(jnp.square(rows).mean(-1, keepdims=True) + 1e-6)
    first, second, third = jnp.split(rows, 3, axis=-1)
    return (first * jnp.tanh(second)) @ weight, third @ weight


def test_rows_that_several_kernels_read_in_parts_are_in_memory_once_normalised():
    """XLA ends a kernel that holds rows with what last reads a figure of each row."""
    args = spec(64, 96), spec(96, 288), spec(288)

    def step(x, weight, scale):
        return jax.grad(lambda x: sum(each.sum() for each in gates(x, weight, scale)))(x)

    graph = trace_step(step, *args).graph
    materialised = fuse(graph, RATES).materialised
    ops = [op for op in graph.ops if op.phase is Phase.FORWARD]
    (split,) = (op for op in ops if op.primitive == "split")
    normalised = [op for op in ops if op.primitive == "mul" and graph.elements(op.writes[0]) == 64 * 288]
    assert graph.producer[split.reads[0]] == normalised[-1].id
    assert normalised[-1].writes[0] in materialised
    assert materialised.isdisjoint(split.writes)


@needs_gpu_target
@pytest.mark.parametrize(
    ("rows", "width", "of_one", "merged"),
    [(256, 256, True, True), (2048, 512, True, True), (32768, 1024, True, False), (256, 256, False, False)],
)
def test_products_of_one_matrix_are_merged_unless_they_are_large_or_depend_on_each_other(rows, width, of_one, merged):
    def loop(carry, first, second):
        def body(carry, _):
            product = carry @ first
            gate = jnp.tanh((carry if of_one else jnp.tanh(product)) @ second)
            return jnp.tanh(product) + gate, None

        return jax.lax.scan(body, carry, None, length=3)[0]

    args = spec(rows, width), spec(width, width), spec(width, width)
    kernels = compile_step(loop, *args, target="h200").footprint.memory.kernels
    assert (sum(bool(kernel.matmul_flops) for kernel in kernels) == 1) is merged
    graph, ops = forward(loop, *args)
    products = [op.id for op in ops if op.primitive == "dot_general"]
    assert merged_products(graph).get(products[0], frozenset()) == (frozenset(products) if merged else frozenset())


@needs_gpu_target
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    ("batch", "rows", "summed", "columns"),
    [
        ((), 256, 512, 512),
        ((), 256, 384, 1152),
        ((), 512, 768, 1536),
        ((), 1024, 2048, 1024),
        ((4,), 128, 1024, 128),
        ((32,), 64, 1024, 64),
        ((16,), 256, 1024, 256),
    ],
)
def test_products_of_both_widths_and_of_batches_are_summed_in_as_many_parts(dtype, batch, rows, summed, columns):
    args = spec(*batch, rows, summed, dtype=dtype), spec(*batch, summed, columns, dtype=dtype)
    text = compile_step(jnp.matmul, *args, target="h200").executable.as_text()
    split = ",".join((*map(str, batch), r"(\d+)", str(rows), str(columns)))
    compiled = max((int(parts) for parts in re.findall(rf"\[{split}\]", text)), default=1)
    graph, ops = forward(jnp.matmul, *args)
    (product,) = (op for op in ops if op.primitive == "dot_general")
    assert number_of_parts(graph, product) == compiled


def gru(weights, state, x):
    reset, update, new = jnp.split(normalised(x @ weights["x"] + weights["b"]), 3, axis=-1)
    by_reset, by_update, by_new = jnp.split(state[0] @ weights["h"], 3, axis=-1)
    update = jax.nn.sigmoid(update + by_update)
    return update * state[0] + (1 - update) * jnp.tanh(new + jax.nn.sigmoid(reset + by_reset) * by_new), state[1]


def normalised(x):
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)


@needs_gpu_target
@pytest.mark.parametrize(("cell", "gates", "most"), [(lstm_cell, 4, 0.06), (gru, 3, 0.1)])
def test_recurrent_cells_take_as_long_as_their_compiled_loops(cell, gates, most):
    """With every residual recomputed. Without rules for small arrays they were 12% and 15% too slow."""
    width, rows, length = 256, 256, 64

    def step(weights, x):
        def loss(weights):
            def body(state, each):
                state = jax.checkpoint(cell)(weights, state, each)
                return state, state[0]

            zeros = jnp.zeros((rows, width))
            return jnp.square(jax.lax.scan(body, (zeros, zeros), x)[1]).mean()

        return jax.grad(loss)(weights)

    weights = {"x": spec(width, gates * width), "h": spec(width, gates * width), "b": spec(gates * width)}
    planner = Planner(step, weights, spec(length, rows, width), target="h200")
    plan = solve(planner.problem, "full")
    compiled_s = planner.measure(plan).footprint.step_s
    assert plan.predicted.step_s == pytest.approx(compiled_s, rel=most)
