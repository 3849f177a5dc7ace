"""Collectives between hosts are found in a compiled module, in each form in which XLA prints groups of devices."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import jaxckpt
from jaxckpt.hlo.device_groups import groups_of, spanning_collectives
from jaxckpt.ir import Graph
from jaxckpt.machine import Target

AXES = {"data": 2, "model": 4}
MESH = AbstractMesh(tuple(AXES.values()), tuple(AXES), axis_types=(AxisType.Auto,) * 2)
ROWS, WIDTH = 4096, 8192


@pytest.mark.parametrize(
    ("printed", "groups"),
    [
        ("{{0,1},{2,3}}, dimensions={0}", [[0, 1], [2, 3]]),
        ("[2,2]<=[4], dimensions={0}", [[0, 1], [2, 3]]),
        ("[2,3]<=[3,2]T(1,0), dimensions={0}", [[0, 2, 4], [1, 3, 5]]),
        ("mesh['a'=2,'b'=3] {'a'}, dimensions={0}", [[0, 3], [1, 4], [2, 5]]),
        ("mesh['a'=2,'b'=2] {'b','a'}", [[0, 2, 1, 3]]),
        ("mesh['a'=4] {'a':(2)2}", [[0, 1], [2, 3]]),
        ("something else", []),
    ],
)
def test_groups_are_read_in_each_form(printed, groups):
    assert groups_of(printed) == groups


def test_collectives_in_one_host_are_left_out():
    text = "\n".join(
        f"  %all-reduce.{number} = f32[8]{{0}} all-reduce(%x), channel_id=1, replica_groups={printed}, to_apply=%add"
        for number, printed in enumerate(("[2,4]<=[8]", "[4,2]<=[2,4]T(1,0)", "[1,8]<=[8]"))
    )
    text += "\n  %moved = f32[8]{0} collective-permute(%x), channel_id=2, source_target_pairs={{0,1},{3,4}}"
    program = SimpleNamespace(instructions={}, computations={})
    assert dict(spanning_collectives(program, text, 4)) == {"all-reduce.1": 1, "all-reduce.2": 4, "moved": 1}


def test_a_group_has_as_many_devices_in_a_host_as_its_axes_are_inner_ones(graph_of_mesh):
    for axes, devices_per_host, in_host in (
        (("model",), 4, 0),
        (("data",), 4, 1),
        (("data", "model"), 4, 4),
        (("model",), 2, 2),
        (("data",), 8, 0),
        (("data",), 0, 0),
        (("model/2",), 2, 0),
    ):
        assert graph_of_mesh.devices_in_host(axes, devices_per_host) == in_host


@pytest.fixture
def graph_of_mesh():
    return Graph(values=(), ops=(), inputs=(), constants=(), outputs=(), mesh=tuple(AXES.items()))


def step(x, weight):
    return jnp.sum(jnp.tanh(x @ weight) ** 2)


@pytest.fixture
def arguments():
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32, sharding=NamedSharding(MESH, PartitionSpec("data", "model")))
    weight = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32, sharding=NamedSharding(MESH, PartitionSpec("model")))
    return x, weight


def test_sums_between_hosts_take_the_time_of_the_network(h200, arguments):
    """One sum over `model`: two hosts of four devices have it in each host, four hosts of two between them."""
    inside, between = (jaxckpt.footprint(step, *arguments, target=name) for name in ("h200:2x4", "h200:4x2"))
    rates = Target("h200:4x2").rates
    slower = max(between.memory.kernels, key=lambda kernel: "all-reduce" in kernel.opcode and kernel.traffic_bytes)
    assert dict(between.memory.spanning)[slower.name] == 2
    assert slower.name not in dict(inside.memory.spanning)
    network_s = slower.traffic_bytes / (2 * rates.network_bandwidth_bytes_per_s)
    link_s = slower.traffic_bytes / rates.link_bandwidth_bytes_per_s
    assert between.step_s - inside.step_s == pytest.approx(network_s - link_s, rel=0.05)


def test_a_collective_has_the_groups_of_the_instruction_that_starts_it():
    start = SimpleNamespace(name="all-gather-start.1", opcode="async-start", called_computation_ids=[7])
    program = SimpleNamespace(
        instructions={1: start, 2: SimpleNamespace(name="all-gather.9", opcode="all-gather")},
        computations={7: SimpleNamespace(root_id=2)},
    )
    text = (
        "  %all-gather-start.1 = (f32[4]{0}, f32[8]{0}) all-gather-start(%x), replica_groups=[1,2]<=[2], dimensions={0}"
    )
    assert dict(spanning_collectives(program, text, 1)) == {"all-gather.9": 1}


def test_gathers_of_a_loops_body_are_found(h200):
    """Weights are gathered over both hosts, layer by layer."""
    split = NamedSharding(MESH, PartitionSpec("data"))
    weights = jax.ShapeDtypeStruct(
        (4, WIDTH, WIDTH), jnp.bfloat16, sharding=NamedSharding(MESH, PartitionSpec(None, "data"))
    )
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.bfloat16, sharding=split)

    def layers(weights, x):
        def layer(x, weight):
            gathered = jax.lax.with_sharding_constraint(weight, NamedSharding(MESH, PartitionSpec()))
            return jax.lax.with_sharding_constraint(jnp.tanh(x @ gathered), split), None

        return jax.lax.scan(layer, x, weights)[0]

    memory = jaxckpt.footprint(layers, weights, x, target="h200:2x4").memory
    gathers = [kernel for kernel in memory.kernels if kernel.opcode in ("all-gather", "all-gather-start")]
    assert gathers
    assert {kernel.name for kernel in gathers} <= dict(memory.spanning).keys()
    assert {kernel.traffic_bytes for kernel in gathers} == {WIDTH * WIDTH * 2 // 2}  # the other host's half
    assert set(dict(memory.spanning).values()) == {1}


def test_the_model_takes_the_time_of_the_network_too(h200):
    def gradient(weights, x):
        return jax.grad(lambda weights: jnp.sum(jnp.tanh(jnp.tanh(x @ weights[0]) @ weights[1])))(weights)

    weight = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32, sharding=NamedSharding(MESH, PartitionSpec("model")))
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
    inside, between = (jaxckpt.Planner(gradient, (weight,) * 2, x, target=name) for name in ("h200:2x4", "h200:4x2"))
    exchanged_bytes = sum(op.exchange_bytes for op in inside.graph.ops)
    assert exchanged_bytes
    assert {op.summed.axes + op.gathered.axes for op in inside.graph.ops} == {(), ("model",)}
    rates = between.problem.rates
    network_s = exchanged_bytes / (2 * rates.network_bandwidth_bytes_per_s)
    link_s = exchanged_bytes / rates.link_bandwidth_bytes_per_s
    seconds = [planner.problem.replay(planner.solver.empty_plan).step_s for planner in (inside, between)]
    assert seconds[1] - seconds[0] == pytest.approx(network_s - link_s)


def test_hosts_without_a_known_network_are_linked_as_devices_are():
    rates = replace(Target("h200:4x2").rates, network_bandwidth_bytes_per_s=0.0)
    assert rates.exchange_s(1e9, in_host=2) == rates.exchange_s(1e9)
