"""Which views of a product are copied for the next one, on the shapes of attention blocks."""

import jax
import jax.numpy as jnp
import pytest

from jaxckpt.schedule.layout import Layouts, copied_views, read_from_transforms, read_in_default_layout
from jaxckpt.trace import trace_step


def graph_of(function, *shapes):
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return trace_step(jax.grad(lambda *flat: jnp.sum(function(*flat) ** 2)), *arguments).graph


def copied(function, *shapes):
    """Primitives of the copied views of the forward pass, and the shapes of what they make."""
    graph = graph_of(function, *shapes)
    ops = (graph.ops[op] for op in sorted(copied_views(graph)))
    return [(op.primitive, graph.values[op.writes[0]].shape) for op in ops if op.phase.value == "forward"]


X, W, HEADS = (2, 8, 12), (12, 12), (2, 8, 3, 4)


def test_heads_between_batch_and_sequence_cost_a_copy_an_operand():
    def scores(x, w):
        q, k = (jnp.reshape(x @ w, HEADS) for _ in range(2))
        return jnp.einsum("bqhd,bkhd->bhqk", q, jnp.sin(k))

    assert copied(scores, X, W) == [("reshape", HEADS)]  # the other one is computed in any order


def test_heads_are_taken_back_into_the_width_by_a_copy():
    def projected(scores, v, w):
        made = jnp.einsum("bhqk,bhkd->bqhd", scores, v)
        return jnp.reshape(made, X) @ w

    assert copied(projected, (2, 3, 8, 8), (2, 3, 8, 4), W) == [("transpose", HEADS)]


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x, w: jnp.reshape(x @ w, (16, 12)) @ w, id="merged as they lie"),
        pytest.param(lambda x, w: jnp.einsum("bsd,de->bes", x, w).transpose(0, 2, 1) @ w, id="rows for columns"),
        pytest.param(lambda x, w: jnp.einsum("bsd,btd->bst", x @ w, x), id="batch outermost"),
    ],
)
def test_operands_in_a_readable_layout_are_not_copied(function):
    assert copied(function, X, W) == []


@pytest.mark.parametrize(
    ("before", "axes", "copies"),
    [
        pytest.param(jnp.positive, (1, 2), [("transpose", (2, 6, 8, 4))], id="an argument, axes in the middle"),
        pytest.param(jnp.positive, (2, 3), [], id="an argument, the last axes"),
        pytest.param(jnp.sin, (1, 2), [], id="what is computed in the order of the transform"),
    ],
)
def test_a_fourier_transform_reads_rows(before, axes, copies):
    assert copied(lambda x: jnp.abs(jnp.fft.rfft2(before(x), axes=axes)), (2, 8, 4, 6)) == copies


def fourier_layer(x, w):
    """A transform over axes in the middle beside a product over the last axis, twice."""

    def layer(x):
        return jnp.sin(jnp.fft.irfft2(jnp.fft.rfft2(x, axes=(1, 2)), axes=(1, 2)) + x @ w)

    return layer(layer(x))


def test_elementwise_results_have_the_layout_of_the_transforms():
    graph = graph_of(fourier_layer, (2, 4, 6, 16), (16, 16))
    layouts = graph.once(Layouts)
    sines = [op.writes[0] for op in graph.ops if op.primitive == "sin"]
    assert len(sines) == 2
    assert {layouts.of(sine) for sine in sines} == {(0, 3, 1, 2)}
    products = [op.writes[0] for op in graph.ops if op.primitive == "dot_general"]
    assert {layouts.of(v) for v in products} == {(0, 1, 2, 3)}
    additions = [op for op in graph.ops if op.primitive == "add" and op.phase.value == "forward"]
    assert all(layouts.transposes(op.reads, op.writes) for op in additions)


def test_products_behind_transforms_read_what_no_library_can():
    graph = graph_of(fourier_layer, (2, 4, 6, 16), (16, 16))
    products = {op.id: op for op in graph.ops if op.primitive == "dot_general"}
    reads = {op: [graph.values[v].shape for v in read] for op, read in read_from_transforms(graph).items()}
    first, *others = sorted(products)
    assert first not in reads  # it reads an argument
    assert all(reads[op] for op in others)
    assert read_in_default_layout(graph) == frozenset()


GROUPED, SHARED = (2, 8, 2, 3, 4), (2, 8, 2, 4)


def shaped(weigh, mix):
    """Primitives and shapes of what has to be pinned as its shape says."""

    def mixed(q, k, v):
        return jnp.einsum(mix, jnp.exp(jnp.einsum(weigh, q, k)), v)

    graph = graph_of(mixed, GROUPED, SHARED, SHARED)
    made = ((graph.ops[graph.producer[value]], graph.values[value]) for value in read_in_default_layout(graph))
    return {(op.primitive, value.shape) for op, value in made if op.phase.value == "forward"}


def test_weights_of_grouped_heads_need_the_default_layout():
    assert shaped("bqkgd,bskd->bkgqs", "bkgqs,bskd->bqkgd") == {("exp", (2, 2, 3, 8, 8))}


@pytest.mark.parametrize(
    ("weigh", "mix"),
    [
        pytest.param("bqkgd,bskd->bksqg", "bksqg,bskd->bqkgd", id="asked for as they lie"),
        pytest.param("bqkgd,bskd->bkqgs", "bkqgs,bskd->bqkgd", id="groups beside queries"),
    ],
)
def test_a_readable_layout_may_be_pinned(weigh, mix):
    assert shaped(weigh, mix) == set()
