"""Rule 9 of `fusion`, against XLA's buffers: a library's product reads what is in memory and writes its result."""

import jax
import jax.numpy as jnp
import pytest

from jaxckpt import Planner
from jaxckpt.cost import fuse, strip_views
from jaxckpt.cost.fusion_analysis import FusionAnalysis
from jaxckpt.machine import Target, targets
from jaxckpt.schedule.steps import unchanged_runs
from jaxckpt.solve import solve
from jaxckpt.solve.problem import decide
from jaxckpt.trace import trace_step

needs_gpu_target = pytest.mark.skipif(
    not any(status.name == "h200" and status.usable for status in targets()),
    reason="needs the CUDA plugin: pip install 'jaxckpt[gpu-targets]'",
)
ROWS, NARROW, WIDE = 16384, 64, 2048
"""Products of narrow matrices wait for memory on an H200, those of wide ones do not."""


def mlp(weights, x):
    """A loss of two layers with relu, which a kernel can compute before each product."""

    def loss(weights):
        hidden = jax.nn.relu(x @ weights[0]) @ weights[1]
        return jnp.square(hidden.astype(jnp.float32)).mean()

    return jax.grad(loss)(weights)


def specs(width):
    def spec(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    return [spec(width, width), spec(width, width)], spec(ROWS, width)


def fusion_of(width, rates):
    graph = trace_step(mlp, *specs(width)).graph
    return graph, fuse(graph, rates)


def test_operands_of_a_librarys_product_are_in_memory():
    rates = Target("h200").rates
    for width, is_library in ((NARROW, False), (WIDE, True)):
        graph, fusion = fusion_of(width, rates)
        products = {op.id for op in graph.ops if op.primitive == "dot_general"}
        assert fusion.rules.products.library.keys() == (products if is_library else set())
        loaded = {strip_views(graph, v) for op in fusion.rules.products.dots for v in graph.ops[op].reads}
        assert bool(loaded - fusion.materialised - fusion.argument_derived) is not is_library


def test_without_rates_no_product_is_a_librarys():
    _, fusion = fusion_of(WIDE, None)
    assert not fusion.rules.products.library


def test_devices_without_a_library_have_no_such_products():
    assert not Target("cpu").rates.is_library_product(1e12, "bfloat16", 1.0)
    assert Target("h200").rates.is_library_product(1e12, "bfloat16", 1.0)


def gated_sum(weights, gates, x):
    """A sum of products, each times a gate: XLA fuses one product after the other, the last one with the sum."""

    def loss(weights):
        first, second = ((x @ weight) * gate for weight, gate in zip(weights, gates, strict=True))
        return jnp.square((first + second).astype(jnp.float32)).mean()

    return jax.grad(loss)(weights)


def gated_sum_specs(width):
    def spec(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    return [spec(width, width)] * 2, [spec(ROWS, width)] * 2, spec(ROWS, width)


def test_the_last_product_is_fused_with_the_sum_of_both():
    graph = trace_step(gated_sum, *gated_sum_specs(WIDE)).graph
    fusion = fuse(graph, Target("h200").rates)
    first, second, *_ = (op.writes[0] for op in graph.ops if op.primitive == "mul")
    assert first in fusion.materialised
    assert second in fusion.inside_products


@needs_gpu_target
def test_kernels_behind_a_library_are_counted_by_themselves():
    """Of wide matrices: narrower ones XLA puts side by side for one product."""
    planner = Planner(gated_sum, *gated_sum_specs(WIDE), target="h200")
    plan = solve(planner.problem, "none")
    assert plan.predicted.step_s == pytest.approx(planner.measure(plan).footprint.step_s, rel=0.05)


@needs_gpu_target
def test_a_product_does_not_load_a_softplus():
    """Its body reads its operand several times: XLA writes the operand and the result, recomputed ones too."""

    def loss(weights, x):
        for weight, bias in weights:
            x = jax.nn.softplus(x @ weight + bias)
        return jnp.square(x).mean()

    spec = jax.ShapeDtypeStruct
    layer = spec((2 * NARROW, 2 * NARROW), jnp.float32), spec((2 * NARROW,), jnp.float32)
    planner = Planner(jax.value_and_grad(loss), [layer] * 4, spec((8 * ROWS, 2 * NARROW), jnp.float32), target="h200")
    plan = solve(planner.problem, "full")
    footprint = planner.measure(plan).footprint
    assert plan.predicted.total_bytes == pytest.approx(footprint.total_bytes, rel=0.02)
    assert plan.predicted.step_s == pytest.approx(footprint.step_s, rel=0.05)


def test_a_product_with_much_traffic_behind_it_is_no_librarys():
    rates = Target("h200").rates
    for width, is_library in ((832, False), (WIDE, True)):
        graph = trace_step(gated_sum, *gated_sum_specs(width)).graph
        steps, values = graph.once(unchanged_runs), range(len(graph.values))
        analysis = FusionAnalysis(fuse(graph, rates).rules, steps, values, graph.outputs)
        second = [op.writes[0] for op in graph.ops if op.primitive == "dot_general"][1]
        assert (second in analysis.library_results) == is_library


@pytest.mark.parametrize("is_operand", [True, False])
def test_an_operand_that_the_epilogue_needs_too_is_read_once(is_operand):
    """A residual stream that the product reads: with an array of its own the kernel would wait for memory."""
    x, other = (jax.ShapeDtypeStruct((ROWS, 832), jnp.bfloat16) for _ in range(2))

    def loss(weight, x, first, other):
        return jnp.square((first * (x @ weight) + (x if is_operand else other)).astype(jnp.float32)).mean()

    graph = trace_step(jax.grad(loss), jax.ShapeDtypeStruct((832, 832), jnp.bfloat16), x, other, other).graph
    steps, values = graph.once(unchanged_runs), range(len(graph.values))
    analysis = FusionAnalysis(fuse(graph, Target("h200").rates).rules, steps, values, graph.outputs)
    product = next(op.writes[0] for op in graph.ops if op.primitive == "dot_general")
    assert (product in analysis.library_results) == is_operand


@pytest.mark.parametrize("experts", [None, 4])
def test_a_library_adds_no_bias_of_each_matrix_of_a_batch(experts):
    def dense(weight, bias, x):
        return x @ weight + bias

    def loss(weights, biases, x):
        several = jax.vmap(dense, in_axes=0) if experts else dense
        return jnp.square(jnp.square(several(weights, biases, x)).astype(jnp.float32)).mean()

    batch = (experts,) if experts else ()
    (weights, *_), x = specs(WIDE)
    spec = jax.ShapeDtypeStruct
    args = [spec((*batch, *shape), x.dtype) for shape in (weights.shape, (WIDE,), x.shape)]
    graph = trace_step(jax.grad(loss, argnums=(0, 1)), *args).graph
    steps, values = graph.once(unchanged_runs), range(len(graph.values))
    analysis = FusionAnalysis(fuse(graph, Target("h200").rates).rules, steps, values, graph.outputs)
    biased = next(op.writes[0] for op in graph.ops if op.primitive == "add")
    assert (biased in analysis.library_results) == (experts is None)


def gelu_blocks(weights, x):
    def loss(weights):
        hidden = x
        for up, down in weights:
            hidden = hidden + jax.nn.gelu(hidden @ up) @ down
        return jnp.square(hidden.astype(jnp.float32)).mean()

    return jax.grad(loss)(weights)


@needs_gpu_target
@pytest.mark.parametrize("strategy", ["none", "full", "every:2"])
def test_predicted_memory_is_that_of_the_compiled_step(strategy):
    """The gradient of gelu reads what the library writes, and is not written over it: four arrays where three do."""

    def spec(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    weights = [(spec(1024, 4096), spec(4096, 1024))] * 4
    planner = Planner(gelu_blocks, weights, spec(ROWS, 1024), target="h200")
    plan = solve(planner.problem, strategy)
    compiled = planner.measure(plan).footprint
    assert plan.predicted.temp_bytes == pytest.approx(compiled.temp_bytes, rel=0.03)


@needs_gpu_target
@pytest.mark.parametrize("is_pinned", [False, True])
def test_no_gradient_is_written_over_logits_of_a_library(is_pinned):
    """A product of few sums is a library's too, as nothing is fused with it: logits and gradient are there together."""
    batch, tokens, width, vocabulary = 8, 256, 128, 40_000

    def step(weights, x, labels):
        def loss(weights):
            hidden = jnp.tanh(x @ weights["in"])
            logits = hidden @ weights["out"].T
            likelihoods = jax.nn.log_softmax(logits.astype(jnp.float32))
            return -jnp.take_along_axis(likelihoods, labels[..., None], axis=-1).mean()

        return jax.grad(loss)(weights)

    def spec(*shape, dtype=jnp.bfloat16):
        return jax.ShapeDtypeStruct(shape, dtype)

    weights = {"in": spec(width, width), "out": spec(vocabulary, width)}
    made = Planner(step, weights, spec(batch, tokens, width), spec(batch, tokens, dtype=jnp.int32), target="h200")
    problem = made.problem
    logits = max(problem.graph.forward, key=lambda op: problem.graph.ops[op].flops or 0)
    (value,) = problem.graph.ops[logits].writes
    plan = decide(problem, frozenset({value}), (0,), "saves logits") if is_pinned else solve(problem, "none")
    compiled_bytes = made.measure(plan).footprint.temp_bytes
    assert round(compiled_bytes / (2 * batch * tokens * vocabulary)) == 4
    assert plan.predicted.temp_bytes == pytest.approx(compiled_bytes, rel=0.01)
