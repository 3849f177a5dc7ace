"""Regions of steps that are more than a head: two heads, images, loops over layers and microbatches, meshes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.models import gpt2
from jaxckpt.ir import Phase
from jaxckpt.rewrite.chunk_rows import Chunk, with_chunk
from jaxckpt.rows import find_regions
from jaxckpt.trace import trace_step
from tests.rows.heads import BATCHED, PARAMETERS, optax_integers, tied
from tests.rows.test_heads import run, wide_values

cross_entropy = optax.softmax_cross_entropy_with_integer_labels


def assert_same(step, args, pieces=2, rtol=1e-5, atol=2e-6):
    """Every region in pieces gives the numbers of the step; returns the last step in pieces."""
    traced = trace_step(step, *args)
    found = find_regions(traced)
    assert found.regions, found.refused
    for region in found.regions:
        chunked = with_chunk(traced, Chunk(region=region, pieces=pieces))
        for ours, own in zip(run(chunked, *args), run(traced, *args), strict=True):
            np.testing.assert_allclose(ours, own, rtol=rtol, atol=atol)
    return chunked


def behind_the_backward(traced):
    """The primitives of forward ops behind the first op of the backward."""
    ops = traced.graph.ops
    begin = next(op.id for op in ops if op.phase is Phase.BACKWARD)
    return [op.primitive for op in ops[begin:] if op.phase is Phase.FORWARD]


def test_two_heads_of_one_model_run_in_pieces_one_after_the_other():
    def loss(parameters, batch):
        return optax_integers(parameters, batch) + 0.3 * tied(parameters, batch)

    traced = trace_step(jax.value_and_grad(loss), PARAMETERS, BATCHED)
    first = with_chunk(traced, Chunk(region=find_regions(traced).regions[0], pieces=2))
    both = with_chunk(first, Chunk(region=find_regions(first).regions[0], pieces=4))
    assert wide_values(first) and not wide_values(both)
    for ours, own in zip(run(both, PARAMETERS, BATCHED), run(traced, PARAMETERS, BATCHED), strict=True):
        np.testing.assert_allclose(ours, own, rtol=1e-5, atol=2e-6)
    assert behind_the_backward(both) == behind_the_backward(traced) == ["broadcast_in_dim"]  # a gradient of zeros


def test_metrics_of_the_logits_are_computed_in_pieces():
    def loss(parameters, batch):
        logits = jnp.tanh(batch["x"] @ parameters["in"]) @ parameters["out"]
        right = logits.argmax(-1) == batch["labels"]
        top = (jax.lax.top_k(logits, 5)[1] == batch["labels"][..., None]).any(-1)
        return cross_entropy(logits, batch["labels"]).mean(), (right.mean(), top.mean(), right)

    chunked = assert_same(jax.value_and_grad(loss, has_aux=True), (PARAMETERS, BATCHED))
    assert not wide_values(chunked)


def test_attention_over_logits_runs_by_sequences_or_by_queries():
    def loss(parameters, batch):
        hidden = jnp.tanh(batch["x"] @ parameters["in"])
        logits = jax.nn.softmax(hidden @ hidden.mT) @ (hidden @ parameters["out"])
        return cross_entropy(logits, batch["labels"]).mean()

    assert_same(jax.value_and_grad(loss), (PARAMETERS, BATCHED))
    by_sequence, by_query = find_regions(trace_step(jax.value_and_grad(loss), PARAMETERS, BATCHED)).regions
    assert (by_sequence.rows, by_query.rows) == (4, 6)
    assert set(by_query.positions) < set(by_sequence.positions)


def test_pixels_of_a_segmentation_are_computed_by_images():
    weights = {"in": 0.1 * jnp.ones((1, 1, 3, 4)), "out": jax.random.normal(jax.random.key(0), (1, 1, 4, 40))}
    images = jax.random.normal(jax.random.key(1), (4, 6, 6, 3))
    labels = jax.random.randint(jax.random.key(2), (4, 6, 6), 0, 40)

    def conv(x, kernel):
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def loss(weights, images, labels):
        return cross_entropy(conv(jnp.tanh(conv(images, weights["in"])), weights["out"]), labels).mean()

    assert_same(jax.value_and_grad(loss), (weights, images, labels))


def test_edges_are_gathered_by_arguments_and_computed_in_pieces():
    ends = jax.random.randint(jax.random.key(0), (2, 48), 0, 10)
    nodes = jax.random.normal(jax.random.key(1), (10, 4))
    targets = jax.random.normal(jax.random.key(2), (48,))
    weights = {"in": jax.random.normal(jax.random.key(3), (8, 64)), "out": jax.random.normal(jax.random.key(4), (64,))}

    def loss(weights, nodes, ends, targets):
        pairs = jnp.concatenate([nodes[ends[0]], nodes[ends[1]]], axis=-1)
        return ((jax.nn.gelu(pairs @ weights["in"]) @ weights["out"] - targets) ** 2).mean()

    chunked = assert_same(
        jax.value_and_grad(loss, argnums=(0, 1)), (weights, nodes, ends, targets), pieces=6, atol=1e-5
    )
    assert not [e for e in chunked.program.equations for v in e.eqn.outvars if v.aval.shape == (48, 64)]


def test_the_head_of_each_microbatch_runs_in_pieces():
    def step(parameters, batch):
        def one(total, part):
            return jax.tree.map(jnp.add, total, jax.grad(optax_integers)(parameters, part)), None

        parts = jax.tree.map(lambda x: x.reshape(2, -1, *x.shape[1:]), batch)
        return jax.lax.scan(one, jax.tree.map(jnp.zeros_like, parameters), parts)[0]

    chunked = assert_same(step, (PARAMETERS, BATCHED))
    assert not wide_values(chunked)


@pytest.mark.parametrize("scanned", [False, True])
def test_the_head_of_a_transformer_runs_in_pieces(scanned):
    model = gpt2.step(**gpt2.small() | {"vocabulary": 512, "scanned": scanned})
    traced = trace_step(model.step, *model.args, donate_argnums=model.donate_argnums)
    found = find_regions(traced)
    assert [(region.dimension, region.rows) for region in found.regions] == [(0, 2), (1, 16)]
    chunked = with_chunk(traced, Chunk(region=found.regions[1], pieces=4))
    assert chunked.donated == traced.donated and chunked.specs == traced.specs
    shapes = [v.aval.shape for e in chunked.program.equations for v in e.eqn.outvars]
    assert (2, 16, 512) not in shapes and (512, 32) in shapes


@pytest.mark.parametrize("axis", ["data", "model"])
def test_sharded_values_are_refused(axis):
    mesh = jax.make_mesh((2,), (axis,), axis_types=(jax.sharding.AxisType.Auto,))
    split = {"data": ("data",), "model": (None, "model")}[axis]

    def placed(array, of_model):
        spec = PartitionSpec(*split) if of_model == (axis == "model") else PartitionSpec()
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(mesh, spec))

    parameters = {name: placed(PARAMETERS[name], True) for name in ("in", "out")}
    batch = {name: placed(BATCHED[name], False) for name in ("x", "labels")}
    found = find_regions(trace_step(jax.value_and_grad(optax_integers), parameters, batch))
    assert not found.regions
    assert any("sharded" in refused.reason for refused in found.refused)
