"""Shardings of values over a mesh, by the compiler's propagation, in loops too; bytes that devices exchange."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from jaxckpt import _compat
from jaxckpt.ir import Phase, Trait
from jaxckpt.trace import trace_step

SIZES = {"data": 2, "model": 4}
TOKENS, WIDTH, WIDE, LAYERS = 32, 64, 128, 3


def mesh(kind="Auto"):
    return AbstractMesh(tuple(SIZES.values()), tuple(SIZES), axis_types=(getattr(AxisType, kind),) * 2)


def spec(shape, *axes, over=None):
    sharding = NamedSharding(over or mesh(), PartitionSpec(*axes))
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)


def scanned(weights, x):
    def loss(weights):
        out, _ = jax.lax.scan(lambda y, w: (y + jnp.tanh(y @ w[0]) @ w[1], None), x, weights)
        return (out**2).sum()

    return jax.value_and_grad(loss)(weights)


def unrolled(weights, x):
    def loss(weights):
        y = x
        for up, down in zip(*weights, strict=True):
            y = y + jnp.tanh(y @ up) @ down
        return (y**2).sum()

    return jax.value_and_grad(loss)(weights)


def updating(step):
    """With an update, which wants gradients split as the weights are."""

    def updated(weights, x):
        value, gradients = step(weights, x)
        return jax.tree.map(jnp.subtract, weights, gradients), value

    return updated


MEGATRON = ((None, None, "model"), (None, "model", None))
SHARDED = ((None, "data", None), (None, "data", None))


def arguments(layout, over=None):
    shapes = (LAYERS, WIDTH, WIDE), (LAYERS, WIDE, WIDTH)
    weights = tuple(spec(shape, *axes, over=over) for shape, axes in zip(shapes, layout, strict=True))
    return weights, spec((TOKENS, WIDTH), "data", over=over)


def results_of(graph, primitive, phase=Phase.FORWARD):
    ops = [op for op in graph.ops if op.primitive == primitive and op.phase is phase]
    return [(op, graph.values[op.writes[0]]) for op in ops]


@pytest.mark.parametrize("step", [scanned, unrolled])
def test_activations_of_sharded_weights_are_sharded_as_compiled(step):
    graph = trace_step(step, *arguments(MEGATRON)).graph
    assert {value.split for _, value in results_of(graph, "tanh")} == {(("data",), ("model",))}
    assert {value.size_bytes for _, value in results_of(graph, "tanh")} == {TOKENS * WIDE * 4 // 8}
    products = results_of(graph, "dot_general")
    assert [value.split for _, value in products[:2]] == [(("data",), ("model",)), (("data",), ())]


@pytest.mark.parametrize("step", [scanned, unrolled])
def test_a_product_summed_over_devices_exchanges_partial_sums(step):
    (up, _), (down, value), *_ = results_of(trace_step(step, *arguments(MEGATRON)).graph, "dot_general")
    assert up.exchange_bytes == 0
    assert down.exchange_bytes == 2 * value.size_bytes * 3 // 4  # scattered over four, and gathered
    assert down.summed.axes == ("model",)
    assert Trait.COLLECTIVE in down.traits - up.traits


@pytest.mark.parametrize("step", [scanned, unrolled])
def test_fully_sharded_weights_are_gathered_for_each_product(step):
    graph = trace_step(step, *arguments(SHARDED)).graph
    (up, value), *_ = results_of(graph, "dot_general")
    assert value.split == (("data",), ())
    assert up.exchange_bytes == up.gathered.size_bytes == WIDTH * WIDE * 4 // 2  # the other device's half
    assert Trait.COLLECTIVE not in up.traits


@pytest.mark.parametrize("step", [scanned, unrolled])
def test_gradients_of_fully_sharded_weights_are_reduce_scattered(step):
    graph = trace_step(updating(step), *arguments(SHARDED)).graph
    op, value = next(
        found for found in results_of(graph, "dot_general", Phase.BACKWARD) if found[1].shape == (WIDTH, WIDE)
    )
    assert value.split == ((), ("data",))
    assert {graph.values[v].split for v in op.reads} == {(("data",), ())}
    assert (op.exchange_bytes, op.gathered.size_bytes) == (value.size_bytes, 0)  # the other device's sum for this part
    assert value.size_bytes == WIDTH * WIDE * 4 // 2


def test_iteration_values_are_sharded_as_computed_not_as_stacked():
    """The gradient of the second weights would have what is stacked split along its width."""
    graph = trace_step(updating(scanned), *arguments(SHARDED)).graph
    (hidden,) = (value for _, value in results_of(graph, "tanh"))
    assert hidden.split == (("data",), ())
    _, (down, _), *_ = results_of(graph, "dot_general")
    assert down.exchange_bytes == WIDTH * WIDE * 4 // 2


def test_work_is_that_of_one_device():
    on_one_device = trace_step(
        unrolled, *(jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype), arguments(MEGATRON)))
    )
    split = trace_step(unrolled, *arguments(MEGATRON))
    flops = [[op.flops for op, _ in results_of(traced.graph, "dot_general")] for traced in (on_one_device, split)]
    assert [8 * each for each in flops[1]] == flops[0]
    assert on_one_device.graph.fingerprint == split.graph.fingerprint  # the same step, wherever it runs


def test_types_say_it_on_explicit_meshes():
    graph = trace_step(unrolled, *arguments(SHARDED, over=mesh("Explicit"))).graph
    assert {value.split for _, value in results_of(graph, "tanh")} == {(("data",), ())}


def test_results_asked_for_by_the_steps_own_jit_count():
    over = mesh()
    jitted = jax.jit(
        lambda x: jax.grad(lambda x: (jnp.sin(x) ** 2).sum())(x),
        in_shardings=NamedSharding(over, PartitionSpec("model")),
    )
    traced = trace_step(jitted, jax.ShapeDtypeStruct((8, 4), jnp.float32))
    assert traced.graph.values[traced.graph.inputs[0]].size_bytes == 8 * 4 * 4 // 4
    assert {value.size_bytes for _, value in results_of(traced.graph, "cos")} == {8 * 4 * 4 // 4}


def test_zeros_are_split_as_what_reads_them():
    def step(w, x):
        return jax.grad(lambda w: jnp.where(x > 0, x @ w, 0.0).sum())(w)

    graph = trace_step(step, spec((WIDTH, WIDTH)), spec((TOKENS, WIDTH), "data")).graph
    broadcasts = [
        value for op in graph.ops if op.primitive == "broadcast_in_dim" for value in [graph.values[op.writes[0]]]
    ]
    assert {v.split for v in broadcasts if v.shape == (TOKENS, WIDTH)} == {(("data",), ())}


def test_part_of_an_axis_is_counted_as_part():
    graph = trace_step(unrolled, *arguments(MEGATRON)).graph
    assert [graph.axis_size(axis) for axis in ("model", "model/2", "data", "elsewhere")] == [4, 2, 2, 1]


def test_shardy_propagates_in_this_jaxlib():
    """A canary: the pass, and the attributes that are read."""
    lowered = jax.jit(lambda x: jnp.sin(x)).trace(spec((8, 4), "data")).lower(lowering_platforms=("cpu",))
    assert _compat.propagated_splits(lowered, 1, 1) == ([(("data",), ())], [(("data",), ())])
