"""Values kept as shards: an nth of the bytes, gathered in the backward, the same gradients; on all kinds of meshes."""

import functools
import re

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import jaxckpt
from jaxckpt import Policy
from jaxckpt.hlo import Part
from jaxckpt.ir import Offload, Partition, Save
from jaxckpt.machine import Target, targets
from jaxckpt.policy import Match, Rule
from jaxckpt.rewrite.known_bad import misreads_offloaded_stacks
from jaxckpt.schedule import decisions_with_axes, partition_with_axes
from jaxckpt.solve import Problem, plan_from_policy
from jaxckpt.trace import trace_step
from tests.zoo.case import quick_jit

GPU = any(status.name == "h200" and status.usable for status in targets())
LAYERS, WIDTH, HIDDEN, TOKENS = 4, 64, 128, 32


def block(y, up, down):
    hidden = checkpoint_name(jnp.sin(y @ up), "hidden")
    return y + jnp.tanh(hidden) @ down


def unrolled(weights, x):
    def loss(weights):
        y = x
        for number, each in enumerate(zip(*weights, strict=True)):
            with jax.named_scope(f"block_{number}"):
                y = block(y, *each)
        return (y**2).mean()

    return jax.value_and_grad(loss)(weights)


def scanned(weights, x):
    def loss(weights):
        y, _ = jax.lax.scan(lambda y, each: (block(y, *each), None), x, weights)
        return (y**2).mean()

    return jax.value_and_grad(loss)(weights)


def accumulated(weights, x):
    def turn(gradients, part):
        value, more = unrolled(weights, part)
        return jax.tree.map(jnp.add, gradients, more), value

    zeros = jax.tree.map(jnp.zeros_like, weights)
    gradients, values = jax.lax.scan(turn, zeros, x.reshape(2, -1, x.shape[-1]))
    return values.mean(), gradients


def keeping(decision):
    return Policy(default="recompute", rules=(Rule(match=Match(name="hidden"), decision=decision),))


def arrays(mesh):
    one, other, last = jax.random.split(jax.random.key(0), 3)
    weights = (
        jax.random.normal(one, (LAYERS, WIDTH, HIDDEN)) / 8,
        jax.random.normal(other, (LAYERS, HIDDEN, WIDTH)) / 11,
    )
    x = jax.random.normal(last, (TOKENS, WIDTH))
    whole = jax.device_put(weights, NamedSharding(mesh, PartitionSpec()))
    return whole, jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))


def mesh_of(kinds):
    if jax.device_count() < 8:
        pytest.skip("fewer than eight devices")
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=tuple(getattr(AxisType, kind) for kind in kinds))


CHOICES = [Partition(), Partition(axis="model"), Partition(axis="model", dim=1), Partition(dim=1)]
SENT = [Offload(shard=True, axis="model"), Offload(shard=True, prefetch=2)]
CASES = [
    *((unrolled, decision) for decision in CHOICES),
    *((step, decision) for step in (scanned, accumulated) for decision in (Partition(), CHOICES[2])),
    *((step, decision) for step in (unrolled, scanned) for decision in SENT),
]
"""All choices where a value is chosen for itself; in loops the open one and the closed one."""


@functools.cache
def unplanned(step, kinds):
    """Arguments on a mesh, and the step's own results."""
    mesh = mesh_of(kinds)
    with jax.set_mesh(mesh):
        args = arrays(mesh)
        return mesh, args, jax.tree.leaves(quick_jit(step)(*args))


def compiled(step, decision, kinds):
    """The text of the planned step as it is compiled, once its results are those of the step."""
    mesh, args, expected = unplanned(step, kinds)
    with jax.set_mesh(mesh):
        planned = quick_jit(jaxckpt.apply(step, keeping(decision))).lower(*args).compile()
        for one, other in zip(expected, jax.tree.leaves(planned(*args)), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)
    return planned.as_text()


@pytest.mark.parametrize(("step", "decision"), CASES, ids=lambda each: getattr(each, "__name__", str(each)))
def test_gradients_are_equal_and_gathered_in_the_backward(step, decision):
    text = compiled(step, decision, ("Auto", "Auto"))
    assert any("transpose(" in name for name in gathers(text))


def gathers(text):
    """For each array that a program gathers a name stack; XLA may gather several at once, under one name."""
    found = re.findall(r'all-gather(?:-start)?\(([^)]*)\).*?op_name="([^"]*)"', text)
    return [name for operands, name in found for _ in range(operands.count("%"))]


KINDS = [("Explicit", "Explicit"), ("Auto", "Explicit"), ("Explicit", "Auto")]


@pytest.mark.parametrize(
    ("step", "kinds", "decision"),
    [
        *((unrolled, kinds, Partition(axis="model")) for kinds in KINDS),
        *((scanned, kinds, Offload(shard=True, axis="model")) for kinds in KINDS),
        (scanned, KINDS[0], Partition(axis="model")),
        (unrolled, KINDS[0], Offload(shard=True, axis="model")),
    ],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_axes_that_types_name_are_partitioned_too(step, kinds, decision):
    assert gathers(compiled(step, decision, kinds))


### Under a jit, without a mesh in the context


def jitted_as(way, step, args):
    """A jit of a planned step, and arguments to call it with, that say how arrays are sharded in one of two ways."""
    if way == "arguments":
        return jax.jit(step), args
    shardings = jax.tree.map(lambda array: array.sharding, args)
    return jax.jit(step, in_shardings=shardings), jax.tree.map(np.asarray, args)


@pytest.mark.parametrize("way", ["arguments", "in_shardings"])
@pytest.mark.parametrize(
    ("step", "decision"),
    [(unrolled, Partition()), (scanned, Partition()), (unrolled, Offload(shard=True)), (scanned, SENT[0])],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_a_jit_around_a_planned_step_says_how_arrays_are_sharded(step, decision, way):
    _, args, expected = unplanned(step, ("Auto", "Auto"))
    assert jax.sharding.get_abstract_mesh().empty
    planned = jaxckpt.apply(step, keeping(decision))
    jitted, args = jitted_as(way, planned, args)
    compiled = jitted.lower(*args).compile()
    for one, other in zip(expected, jax.tree.leaves(compiled(*args)), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)
    names = gathers(compiled.as_text())
    assert len(names) == (LAYERS if step is unrolled else 1)
    assert all("transpose(" in name for name in names)
    moved = {found for found in planned.plan.decisions.values() if isinstance(found, Partition | Offload)}
    assert {(each.axis, each.dim) for each in moved if isinstance(each, Partition)} <= {("model", 1)}
    assert moved  # dimension 0 is sharded over "data", which only the shardings of the arguments say


def test_a_random_key_is_an_argument_of_a_jit_around_a_planned_step():
    """A key is lowered as an array with a dimension more."""
    mesh, args, _ = unplanned(unrolled, ("Auto", "Auto"))
    key = jax.device_put(jax.random.key(0), NamedSharding(mesh, PartitionSpec()))

    def noisy(key, *args):
        return unrolled(*args), jax.random.uniform(key)

    *_, expected = jax.tree.leaves(quick_jit(noisy)(key, *args))
    *_, found = jax.tree.leaves(quick_jit(jaxckpt.apply(noisy, keeping(Partition())))(key, *args))
    assert found == expected


def test_a_jit_is_lowered_anew_for_other_shardings():
    mesh, args, expected = unplanned(unrolled, ("Auto", "Auto"))
    planned = jaxckpt.apply(unrolled, keeping(Partition()))
    jitted = jax.jit(planned)
    replicated = jax.device_put(args, NamedSharding(mesh, PartitionSpec()))
    for given, dim in ((args, 1), (replicated, 0)):
        for one, other in zip(expected, jax.tree.leaves(jitted(*given)), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)
        assert {each.dim for each in planned.plan.decisions.values() if isinstance(each, Partition)} == {dim}


def test_within_another_jit_types_name_the_mesh():
    _, args, expected = unplanned(unrolled, ("Auto", "Auto"))
    planned = jaxckpt.apply(unrolled, keeping(Partition(axis="model", dim=1)))
    nested = jax.jit(lambda weights, x: jax.jit(planned)(weights, x * 1)).lower(*args).compile()
    assert len(gathers(nested.as_text())) == LAYERS
    for one, other in zip(expected, jax.tree.leaves(nested(*args)), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


@pytest.mark.skipif(not GPU, reason="no compile-only GPU")
def test_descriptions_of_arguments_name_the_mesh_of_a_footprint():
    mesh = AbstractMesh((8,), ("model",), axis_types=(AxisType.Auto,))
    args = shapes(replicated := NamedSharding(mesh, PartitionSpec()))
    bare = jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), args)
    followed = jaxckpt.Planner(unrolled, *args, target="h200:8").follow(keeping(Partition())).footprint
    found = jaxckpt.footprint(jaxckpt.apply(unrolled, keeping(Partition())), *args, target="h200:8")
    jitted = jax.jit(jaxckpt.apply(unrolled, keeping(Partition())), in_shardings=replicated)
    assert found.temp_bytes == followed.temp_bytes
    assert jaxckpt.footprint(jitted, *bare, target="h200:8").temp_bytes == followed.temp_bytes


def test_a_jit_of_a_planned_step_donates():
    """A jit carries the attributes of the function in it, and is not that function."""
    planned = jaxckpt.apply(lambda w, x: jax.grad(lambda w: jnp.sin(jnp.sin(x @ w) @ w).sum())(w) + w, "nothing")
    args = jnp.ones((64, 64)), jnp.ones((32, 64))
    assert jaxckpt.footprint(jax.jit(planned, donate_argnums=0), *args, target="cpu").alias_bytes == 64 * 64 * 4


### What is split


def abstract(sizes=(2, 4), kinds=AxisType.Auto):
    return AbstractMesh(sizes, ("data", "model")[: len(sizes)], axis_types=(kinds,) * len(sizes))


def graph_of(shape=(8, 6, 12), *, axes=("data",), dtype=jnp.float32, sizes=(2, 4)):
    sharding = NamedSharding(abstract(sizes), PartitionSpec(*axes))

    def step(x):
        return jax.grad(lambda x: (jnp.sin(x) ** 2).sum().astype(jnp.float32))(x)

    return trace_step(step, jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)).graph


def decided(decision, **step):
    graph = graph_of(**step)
    (value,) = {op.writes[0] for op in graph.ops if op.primitive == "cos"}
    return partition_with_axes(graph, value, decision)


def test_the_largest_axis_and_the_first_dimension_are_chosen():
    assert decided(Partition()) == Partition(axis="model", dim=2)  # 8 is split over data, 4 does not divide 6
    assert decided(Partition(), axes=()) == Partition(axis="model", dim=0)
    assert decided(Partition(axis="data"), axes=()) == Partition(axis="data", dim=0)
    assert decided(Partition(dim=1), axes=()) == Partition(axis="data", dim=1)


def test_what_is_said_is_not_chosen():
    said = Partition(axis="model", dim=1)
    assert decided(said) == said


def test_a_value_that_no_axis_divides_is_not_partitioned():
    assert decided(Partition(), shape=(3, 5, 7), axes=()) == Save()
    assert decided(Partition(axis="model"), shape=(2, 6), axes=()) == Save()


def test_a_value_split_over_the_axis_already_is_not_changed():
    assert decided(Partition(axis="data", dim=1)) == Save()
    assert decided(Partition(), shape=(8, 6), axes=("data", "model"), sizes=(2, 2)) == Save()


def test_a_value_of_fewer_elements_than_ranks_is_not_partitioned():
    assert decided(Partition(axis="model"), shape=(2,), axes=()) == Save()
    assert decided(Partition(axis="model"), shape=(4,), axes=()) == Partition(axis="model", dim=0)


def test_sharded_offloads_are_split_by_the_same_rules():
    graph = graph_of()
    (value,) = {op.writes[0] for op in graph.ops if op.primitive == "cos"}
    assert decisions_with_axes(graph, {value: Offload(shard=True)}) == {value: Offload(shard=True, axis="model", dim=2)}
    graph = graph_of(shape=(3, 5, 7), axes=())
    (value,) = {op.writes[0] for op in graph.ops if op.primitive == "cos"}
    assert decisions_with_axes(graph, {value: Offload(shard=True, prefetch=2)}) == {value: Offload(prefetch=2)}


def test_integers_are_not_partitioned():
    graph = trace_step(
        picking, *(jax.ShapeDtypeStruct(s, d, sharding=NamedSharding(abstract(), PartitionSpec())) for s, d in SPECS)
    ).graph
    values = {v for op in graph.ops for v in op.writes if graph.values[v].name == "index"}
    assert {partition_with_axes(graph, value, Partition()) for value in values} == {Save()}


SPECS = (((8, 4), jnp.float32), ((16,), jnp.float32))


def picking(table, x):
    index = checkpoint_name((x > 0).astype(jnp.int32), "index")
    return jax.grad(lambda table: (table[index] ** 2).sum())(table)


def test_without_a_mesh_it_is_refused():
    with pytest.raises(jaxckpt.UnsupportedDecisionError, match="no argument has a sharding"):
        jaxckpt.apply(unrolled, keeping(Partition()))(
            (jnp.ones((LAYERS, WIDTH, HIDDEN)), jnp.ones((LAYERS, HIDDEN, WIDTH))), jnp.ones((TOKENS, WIDTH))
        )


def test_without_a_mesh_a_jit_refuses_it_when_it_is_lowered():
    jitted = jax.jit(jaxckpt.apply(unrolled, keeping(Partition())))
    args = (jnp.ones((LAYERS, WIDTH, HIDDEN)), jnp.ones((LAYERS, HIDDEN, WIDTH))), jnp.ones((TOKENS, WIDTH))
    with pytest.raises(jaxckpt.UnsupportedDecisionError, match="or in_shardings, for the jit directly around the step"):
        jitted.lower(*args)


def test_a_policy_file_may_leave_axis_and_dimension_open():
    text = 'default = "recompute"\n[[rule]]\nname = "hidden"\ndecision = "partition"\n'
    assert Policy.from_toml(text).rules == keeping(Partition()).rules
    assert Policy.from_toml(Policy.from_toml(text).to_toml()).rules[0].decision == Partition()


def test_a_policy_file_may_ask_for_shards_on_the_host():
    text = 'default = "recompute"\n[[rule]]\nname = "hidden"\ndecision = "offload"\nshard = true\naxis = "model"\n'
    policy = Policy.from_toml(text)
    assert policy.rules[0].decision == Offload(shard=True, axis="model")
    assert Policy.from_toml(policy.to_toml()) == policy
    with pytest.raises(jaxckpt.PolicyError, match="only with shard = true"):
        Policy.from_toml(text.replace("shard = true\n", ""))


### What it costs and what it leaves


def predicted(decision, step=unrolled):
    mesh = abstract()
    whole = NamedSharding(mesh, PartitionSpec())
    args = jax.eval_shape(functools.partial(jax.tree.map, lambda s: s), shapes(whole))
    graph = trace_step(step, *jax.tree.map(lambda a: a.update(sharding=whole), args)).graph
    return plan_from_policy(Problem(graph=graph, rates=Target("h200:8").rates), keeping(decision)).plan.prediction


def shapes(sharding):
    described = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32, sharding=sharding)
    return (described((LAYERS, 512, 2048)), described((LAYERS, 2048, 512))), described((8192, 512))


@pytest.mark.parametrize("step", [unrolled, scanned])
def test_the_gather_is_in_the_price(step):
    whole, cut = predicted(Save(), step), predicted(Partition(axis="model"), step)
    rates = Target("h200:8").rates
    gathered_s = LAYERS * rates.exchange_s(8192 * 2048 * 4 * 3 / 4)
    assert cut.temp_bytes < whole.temp_bytes
    assert rates.link_bandwidth_bytes_per_s < rates.memory_bandwidth_bytes_per_s / 5
    assert (
        cut.step_s - whole.step_s
        >= 0.9 * gathered_s - LAYERS * 8192 * 2048 * 4 * 3 / rates.memory_bandwidth_bytes_per_s
    )


@pytest.mark.skipif(not GPU, reason="no compile-only GPU")
@pytest.mark.parametrize("step", [unrolled, scanned])
def test_each_device_keeps_an_eighth_of_the_bytes(step):
    mesh = AbstractMesh((8,), ("model",), axis_types=(AxisType.Auto,))
    args = shapes(NamedSharding(mesh, PartitionSpec()))
    kept = [
        waiting(jaxckpt.Planner(step, *args, target="h200:8").follow(keeping(decision)).footprint.memory, parts)
        for decision, parts in ((Save(), 1), (Partition(axis="model", dim=1), 8))
    ]
    assert kept[0] == LAYERS * 8192 * 2048 * 4
    assert kept[1] == pytest.approx(kept[0] / 8, rel=0.02)


@pytest.mark.skipif(not GPU, reason="no compile-only GPU")
@pytest.mark.parametrize("step", [unrolled, scanned])
def test_each_device_sends_its_shard_to_the_host(step):
    target = Target("h200:8")
    if step is scanned and misreads_offloaded_stacks(target.platform, target.compiler_version):
        pytest.skip("this compiler mixes up the turns, and the planner refuses it")
    mesh = AbstractMesh((8,), ("model",), axis_types=(AxisType.Auto,))
    args = shapes(NamedSharding(mesh, PartitionSpec()))
    planned = jaxckpt.Planner(step, *args, target="h200:8").follow(keeping(Offload(shard=True)))
    assert planned.footprint.memory.most_host_bytes == LAYERS * 8192 * 2048 * 4 // 8
    assert planned.predicted.host_bytes == LAYERS * 8192 * 2048 * 4 // 8


def waiting(memory, parts):
    """Bytes of the hidden values, or of their shards, at the first gather or product behind the forward pass."""
    behind = ((i, kernel) for i, kernel in enumerate(memory.kernels) if kernel.part is not Part.FORWARD)
    first = next(i for i, kernel in behind if kernel.matmul_flops or kernel.name.startswith("all-gather"))
    size_bytes = 8192 * 2048 * 4 // parts
    values = (b for b in memory.alive_at(first) if 8192 in b.shape and 2048 // parts in b.shape)
    alive = [b for b in values if b.part is not Part.RECOMPUTE]
    stacks = {(b.allocation, b.offset_bytes): b.size_bytes for b in alive if b.size_bytes == LAYERS * size_bytes}
    return sum(stacks.values()) or sum(b.size_bytes for b in alive if b.size_bytes == size_bytes)


def test_moves_of_an_iteration_are_in_the_bodies_of_its_loops():
    mesh = mesh_of(("Auto", "Auto"))
    args = arrays(mesh)
    with jax.set_mesh(mesh):
        jaxpr = jax.make_jaxpr(jaxckpt.apply(scanned, keeping(Partition(axis="model"))))(*args)
    bodies = [eqn.params["jaxpr"] for eqn in walk(jaxpr) if eqn.primitive.name == "scan"]
    counts = [sum(eqn.primitive.name == "sharding_constraint" for eqn in walk(body)) for body in bodies]
    assert counts == [1, 1]


def walk(jaxpr):
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield eqn
        if eqn.primitive.name != "scan":
            for inner in jex.jaxprs_in_params(eqn.params):
                yield from walk(inner)
