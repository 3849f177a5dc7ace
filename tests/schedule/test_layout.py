"""Axes lie as a product left them; what a later product leaves otherwise is turned."""

import jax
import jax.numpy as jnp
import pytest

from jaxckpt.cost import fuse, replay
from jaxckpt.cost.rates import arithmetic_costs
from jaxckpt.ir import GraphPlan, Kind, Phase
from jaxckpt.schedule import schedule
from jaxckpt.schedule.layout import Layouts
from jaxckpt.trace import trace_step
from tests.graphs import RATES, Builder

BATCH, SEQUENCE, GROUPS, HEADS, WIDTH = 64, 256, 2, 4, 16
SCORES_BYTES = BATCH * GROUPS * HEADS * SEQUENCE**2 * 2


def attention(scores: str, mixed: str, *, queries: tuple[int, ...], keys: tuple[int, ...]):
    """The gradient of a softmax between two products, with the axes of heads that queries and keys have."""

    def loss(q, k, v):
        weights = jax.nn.softmax(jnp.einsum(scores, q, k).astype(jnp.float32), axis=-1).astype(q.dtype)
        return jnp.einsum(mixed, weights, v).astype(jnp.float32).sum()

    q, kv = (jax.ShapeDtypeStruct((BATCH, SEQUENCE, *axes, WIDTH), jnp.bfloat16) for axes in (queries, keys))
    return trace_step(jax.grad(loss, argnums=(0, 1, 2)), q, kv, kv).graph


@pytest.fixture(scope="module")
def swapped():
    """As it is mostly written: `einsum` swaps the operands of the first product, and turns what comes out."""
    return attention("bqkgd,bskd->bkgqs", "bkgqs,bskd->bqkgd", queries=(GROUPS, HEADS), keys=(GROUPS,))


@pytest.fixture(scope="module")
def straight():
    """Without groups nothing is turned."""
    heads = (GROUPS * HEADS,)
    return attention("bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", queries=heads, keys=heads)


def large(graph, primitive: str, phase: Phase):
    """Ops of a primitive that read or write something of the scores' shape."""
    elements = SCORES_BYTES // 2
    return [
        op
        for op in graph.ops
        if op.primitive == primitive
        and op.phase is phase
        and max(map(graph.elements, (*op.reads, *op.writes))) == elements
    ]


def test_a_transposed_product_keeps_its_layout(swapped):
    layouts = Layouts(swapped)
    (exponential,) = large(swapped, "exp", Phase.FORWARD)
    assert swapped.values[exponential.writes[0]].shape == (BATCH, GROUPS, HEADS, SEQUENCE, SEQUENCE)
    assert layouts.of(exponential.writes[0]) == (0, 1, 4, 3, 2)
    for reduction in (
        op for op in swapped.ops if op.kind is Kind.REDUCTION and op in large(swapped, op.primitive, op.phase)
    ):
        assert layouts.reduces_strided_axes(reduction)


def test_the_backward_product_is_transposed_after_its_cast(swapped):
    layouts = Layouts(swapped)
    (turned,) = (swapped.ops[op] for op in layouts.transposed)
    assert (turned.primitive, turned.phase) == ("convert_element_type", Phase.BACKWARD)
    assert swapped.ops[swapped.producer[turned.reads[0]]].kind is Kind.CONTRACTION
    assert layouts.of(turned.writes[0]) == (0, 1, 4, 3, 2)


def test_transposed_products_are_materialised_but_not_rows(swapped):
    rules = fuse(swapped).rules
    (turned,) = Layouts(swapped).transposed
    assert turned in rules.writes_memory
    assert turned not in rules.loops
    assert not rules.rows.folded
    assert swapped.ops[turned].writes[0] in fuse(swapped).materialised


def test_transposed_product_and_float32_scores_live_together(swapped, straight):
    def peak_bytes(graph):
        arithmetic = arithmetic_costs(graph, RATES)
        laid_out = schedule(graph, GraphPlan(fingerprint=""))
        return replay(graph, laid_out, fusion=fuse(graph), arithmetic=arithmetic, rates=RATES).peak_bytes

    assert peak_bytes(swapped) - peak_bytes(straight) >= SCORES_BYTES


def test_products_of_one_layout_are_not_transposed(straight):
    layouts = Layouts(straight)
    assert not layouts.transposed
    assert large(straight, "exp", Phase.FORWARD)
    assert all(
        layouts.of(v.id) == tuple(range(len(v.shape)))
        for v in straight.values
        if len(v.shape) == 4 and v.shape[-1] == SEQUENCE and v.shape[-2] == SEQUENCE
    )
    assert fuse(straight).rules.rows.folded


def two_products(*permutations, shape=(8, 8, 8)):
    """Two products, each transposed, multiplied."""
    build = Builder()
    operands = []
    for axes in permutations:
        product = build.shaped("dot_general", build.input(64), shape=shape)
        turned = tuple(shape[axis] for axis in axes)
        detail = f"permutation=({','.join(map(str, axes))})"
        operands.append(build.shaped("transpose", product, shape=turned, detail=detail))
    result = build.shaped("mul", *operands, shape=build.values[operands[0]].shape)
    return build.graph(result), result


@pytest.mark.parametrize(
    ("first", "second", "turned"),
    [
        ((2, 1, 0), (2, 1, 0), False),
        ((0, 1, 2), (0, 1, 2), False),
        ((2, 1, 0), (0, 1, 2), True),
        ((0, 2, 1), (0, 1, 2), False),  # rows and columns
        ((1, 2, 0), (0, 1, 2), False),  # one axis of rows, two of columns
        ((1, 0, 2), (0, 1, 2), True),
    ],
)
def test_the_later_of_two_products_is_transposed(first, second, turned):
    graph, result = two_products(first, second)
    layouts = Layouts(graph)
    later = graph.ops[graph.producer[result]].reads[1]
    assert layouts.transposed == ({graph.producer[later]} if turned else set())
    assert layouts.of(result) == tuple(first.index(axis) for axis in range(3))
