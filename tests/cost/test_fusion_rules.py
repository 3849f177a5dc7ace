"""Golden sets of each fusion rule that depends on the graph alone, by the primitives of its ops."""

import operator

import jax
import jax.numpy as jnp
import pytest

from jaxckpt.cost import fuse
from jaxckpt.cost.fusion_rules import unfolded_rules
from jaxckpt.ir import Graph, Phase
from jaxckpt.machine import Target
from jaxckpt.trace import trace_step
from tests.graphs import RATES, Builder


def mixed() -> Graph:
    """Ops of all kinds, one of each."""
    build = Builder()
    x, index, bias = build.input(4000), build.input(8), build.input(4)
    product = build.op("dot_general", x, size_bytes=4000)
    view = build.op("reshape", product, size_bytes=4000)
    wide = build.op("broadcast_in_dim", bias, size_bytes=4000)
    shifted = build.op("add", view, wide, size_bytes=4000)
    slow = build.op("erfc", shifted, size_bytes=4000)
    picked = build.op("gather", slow, index, size_bytes=400)
    part = build.op("slice", slow, size_bytes=400)
    zeros = build.op("iota", size_bytes=4000)
    scattered = build.op("scatter-add", zeros, index, picked, size_bytes=4000)
    total = build.op("add_any", slow, scattered, size_bytes=4000)
    build.op("sort", part, size_bytes=400)
    build.op("tanh", total, size_bytes=4000, phase=Phase.BACKWARD)
    return build.graph(build.op("reduce_sum", total, size_bytes=4, phase=Phase.BACKWARD))


def softmax(length=100) -> Graph:
    """A softmax over 64 rows whose exponentials the backward reads."""
    build = Builder()
    shape = (64, length)
    scores = build.shaped("dot_general", build.input(4000), shape=shape)
    top = build.shaped("broadcast_in_dim", build.shaped("reduce_max", scores, shape=shape[:1]), shape=shape)
    powers = build.shaped("exp", build.shaped("sub", scores, top, shape=shape), shape=shape)
    total = build.shaped("broadcast_in_dim", build.shaped("reduce_sum", powers, shape=shape[:1]), shape=shape)
    out = build.shaped("dot_general", build.shaped("div", powers, total, shape=shape), shape=(4,))
    return build.graph(build.shaped("mul", powers, out, shape=shape, phase=Phase.BACKWARD), out)


def columns() -> Graph:
    """The sum over the last axis of a product that was transposed: its elements do not lie together."""
    build = Builder()
    product = build.shaped("dot_general", build.input(64), shape=(8, 4))
    transposed = build.shaped("transpose", product, shape=(4, 8), detail="permutation=(1,0)")
    return build.graph(build.shaped("reduce_sum", transposed, shape=(4,)))


def primitives(graph, ops):
    return {graph.ops[op].primitive for op in ops}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("writes_memory", {"dot_general", "sort", "reduce_sum", "add_any"}),
        ("same_size_views", {"reshape"}),
        ("products.dots", {"dot_general"}),
        ("after_forward", {"tanh", "reduce_sum"}),
        ("gathers", {"gather"}),
        ("partial_reads", {"slice"}),
        ("storing.expensive", {"erfc"}),
        ("never_materialised", {"reshape", "broadcast_in_dim", "iota", "slice", "scatter-add"}),
        ("loops", {"reshape", "broadcast_in_dim", "add", "erfc", "slice", "iota", "tanh", "reduce_sum"}),
    ],
)
def test_a_rule_finds_its_ops(rule, expected):
    graph = mixed()
    assert primitives(graph, operator.attrgetter(rule)(unfolded_rules(graph))) == expected


@pytest.mark.parametrize(
    ("rule", "build", "expected"),
    [
        ("nested_reductions", columns, set()),
        ("nested_reductions", softmax, {"reduce_max", "reduce_sum"}),
        ("row_reductions", columns, set()),
        ("row_reductions", softmax, {"reduce_max", "reduce_sum"}),
        ("stored_exponentials", softmax, {"exp"}),
        ("stored_exponentials", lambda: softmax(64), set()),
        ("separate_reductions", softmax, {"reduce_sum"}),
        ("separate_reductions", lambda: softmax(64), set()),
    ],
)
def test_a_rule_of_rows_finds_its_ops(rule, build, expected):
    graph = build()
    assert primitives(graph, getattr(unfolded_rules(graph).rows, rule)) == expected


@pytest.mark.parametrize(
    ("rows", "widths", "is_joined"),
    [
        ((2048,), (64, 128), True),
        ((2048,), (64, 64, 64), True),
        ((2048,), (64, 100), False),
        ((2048,), (128, 0), False),
        ((8, 16, 16), (512, 512), True),
        ((8, 16, 20), (512, 512), False),
        ((16, 2048), (64, 64), False),
        ((8, 4096), (64, 64), True),
        ((2, 4, 4096), (64, 64), True),
    ],
)
def test_parts_of_whole_tiles_are_joined_in_front_of_each_product(rows, widths, is_joined):
    """The second product, for the gradient, keeps the axis; with an empty part nothing is joined along it.

    If there are several axes of rows, the last one has whole tiles too. The sum over 32,768 rows is in 8 parts, each of
    which has whole outer axes.
    """

    def loss(weight, *parts):
        return jnp.square(jnp.tanh(jnp.concatenate(parts, axis=-1) @ weight) @ weight.T).sum()

    shapes = (sum(widths), 2048), *((*rows, width) for width in widths)
    graph = trace_step(jax.grad(loss), *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).graph
    rules = unfolded_rules(graph, Target("h200").rates)
    assert primitives(graph, rules.products.concatenations) == ({"concatenate"} if is_joined else set())
    assert len(rules.products.joined) == is_joined  # the second product, of two that read it


def test_operands_that_must_be_in_memory():
    graph = mixed()
    found = {op.primitive: needed for op, needed in zip(graph.ops, unfolded_rules(graph).needed_operands, strict=True)}
    assert {name: needed for name, needed in found.items() if needed} == {
        "dot_general": (0,),
        "sort": (0,),
        "add_any": (0,),
    }


def test_a_product_loads_what_is_shifted_by_a_broadcast_argument():
    graph = mixed()
    loaded = {
        graph.ops[op].primitive: position for op, position in unfolded_rules(graph).products.loaded_operands.items()
    }
    assert loaded == {"add": 0, "tanh": 0}


def test_maxima_behind_a_reduction_are_looked_at_once():
    """A sorting network: each pair doubles the paths behind the reduction, to 2**60."""
    build = Builder()
    rows = build.input(4 * 2**20)
    low = high = build.op("reduce_max", rows, size_bytes=4 * 2**10)
    for _ in range(60):
        low, high = (build.op(name, low, high, size_bytes=4 * 2**10) for name in ("min", "max"))
    fuse(build.graph(low, high), RATES)
