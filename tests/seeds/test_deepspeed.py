"""DeepSpeed's activation checkpointing, feature by feature: partitions, the host, opting out, random streams."""

import json

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxckpt
from jaxckpt.ir import Offload, Partition, Save
from jaxckpt.machine import Target, targets
from jaxckpt.policy import Match, Policy, Rule
from jaxckpt.solve import Problem, plan_from_policy
from jaxckpt.trace import trace_step
from tests.annotate.residuals import assert_same
from tests.seeds.nets import W, X, again, exchanged, layers, regions, saved

GPU = any(status.name == "h200" and status.usable for status in targets())
RATES = Target("h200").rates
WIDTH, TOKENS, DEPTH = 256, 4096, 6
ONE = TOKENS * WIDTH * 4


def named(w, x):
    """Blocks whose inputs have names; a loss and its gradient."""

    def loss(w):
        y = x
        for number in range(DEPTH):
            with jax.named_scope(f"block_{number}"):
                y = jaxckpt.name(y @ w, "block_input")
                y = jnp.sin(jnp.tanh(y) @ w)
        return (y**2).sum()

    return jax.value_and_grad(loss)(w)


def inputs(decision, **match):
    return Policy(rules=(Rule(match=Match(name="block_input", **match), decision=decision),), default="recompute")


def described(mesh=None):
    whole = None if mesh is None else NamedSharding(mesh, PartitionSpec())
    return tuple(
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=whole) for shape in ((WIDTH, WIDTH), (TOKENS, WIDTH))
    )


def decided(policy, *args):
    """What is decided about the named inputs, by layer."""
    plan = plan_from_policy(Problem(graph=(graph := trace_step(named, *args).graph), rates=RATES), policy).plan
    return [plan.decisions[v.id] for v in graph.values if v.name == "block_input" and v.id in plan.decisions]


def placed(mesh, *arrays):
    """Whole on each device."""
    return jax.device_put(arrays, NamedSharding(mesh, PartitionSpec()))


@pytest.fixture
def mesh():
    if jax.device_count() < 8:
        pytest.skip("fewer than eight devices")
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


### Partition and host


@pytest.mark.skipif(not GPU, reason="no compile-only GPU")
def test_partitioned_inputs_take_one_nth_on_each_device():
    mesh = jax.sharding.AbstractMesh((8,), ("model",), axis_types=(AxisType.Auto,))
    whole, cut = (
        jaxckpt.Planner(named, *described(mesh), target="h200:8").follow(inputs(decision)).footprint.temp_bytes
        for decision in (Save(), Partition(axis="model", dim=1))
    )
    assert whole - cut >= (DEPTH - 2) * ONE * 7 / 8


def test_partitioned_inputs_are_gathered_in_the_backward(mesh):
    args = placed(mesh, W, X)
    planned = jaxckpt.apply(named, inputs(Partition(axis="model", dim=1)))
    with jax.set_mesh(mesh):
        assert exchanged(named, *args)["all-gather"] == 0
        assert exchanged(planned, *args)["all-gather"] >= DEPTH
    assert_same(planned(*args), jax.jit(named)(*args))


def test_a_dimension_that_the_axis_does_not_divide_is_refused(mesh):
    """DeepSpeed asserts it when the values come; so do we, before anything runs."""
    planned = jaxckpt.apply(named, inputs(Partition(axis="model", dim=1)))
    with pytest.raises(jaxckpt.UnsupportedDecisionError, match="whose size divides that dimension"):
        planned(*placed(mesh, jnp.eye(6), jnp.ones((8, 6))))


def test_small_values_stay_whole_on_request():
    cut = Partition(axis="model", dim=1)
    assert decided(inputs(cut, min_bytes=ONE), *described()) == [cut] * DEPTH
    with pytest.raises(jaxckpt.PolicyError, match="matches nothing"):
        decided(inputs(cut, min_bytes=ONE + 1), *described())


def test_the_last_segments_and_what_is_small_stay_on_the_device():
    """`keep_last_count` and `min_offload_bytes`, as rules."""
    rules = (
        Rule(match=Match(name="block_input", layers=f"{DEPTH - 1}"), decision=Save()),
        Rule(match=Match(name="block_input", min_bytes=1024), decision=Offload()),
    )
    moved = decided(Policy(rules=rules[1:], default="recompute"), *described())
    assert list(map(type, moved)) == [Offload] * DEPTH
    kept = decided(Policy(rules=rules, default="recompute"), *described())
    assert list(map(type, kept)) == [Offload] * (DEPTH - 1)  # of the last block the compiler keeps what is next to it


def test_a_value_may_be_kept_whole_whatever_the_rest_does():
    """`no_checkpointing` on a tensor: a name that is saved."""
    step = layers(3)
    kept = Rule(match=Match(scope="block_1", primitive="tanh"), decision=Save())
    assert again(step, regions("block_*"), W, X)["tanh"] == 3
    assert again(step, regions("block_*", rules=(kept,)), W, X)["tanh"] == 2
    assert "block_1/tanh" in saved(step, regions("block_*", rules=(kept,)), W, X)


### The same configuration file


@pytest.mark.parametrize(
    "block",
    [{}, {"partition_activations": True}, {"cpu_checkpointing": True}, {"synchronize_checkpoint_boundary": True}],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:deepspeed. synchronize_checkpoint_boundary")  # a test of the reader is about it
def test_a_configuration_of_theirs_computes_the_same(mesh, block):
    args = placed(mesh, W, X)
    read = jaxckpt.read_policy(json.dumps({"activation_checkpointing": block}), "deepspeed")
    assert_same(jaxckpt.apply(layers(4), read.policy)(*args), jax.jit(layers(4))(*args))


### Random streams


def test_random_streams_differ_by_rank_and_are_reproduced(mesh):
    """`model_parallel_cuda_manual_seed`: what is one seed a rank there is `fold_in` of the axis here."""
    apart = PartitionSpec("data", "model")

    def drop(x, key):
        mine = jax.random.fold_in(key, jax.lax.axis_index("model"))
        return jnp.where(jax.random.bernoulli(mine, 0.5, x.shape), jnp.exp(x), 0.0)

    part = jax.shard_map(drop, mesh=mesh, in_specs=(apart, PartitionSpec()), out_specs=apart, check_vma=False)

    def loss(x, key):
        with jax.named_scope("block_0"):
            y = part(x, key)
        return (y * 2).sum(), y != 0

    step = jax.grad(loss, has_aux=True)
    args = (jnp.zeros((8, 64)), jax.random.key(0))
    planned = jaxckpt.apply(step, regions("block_*"))
    assert again(step, regions("block_*"), *args)["random_bits"] > 0
    gradient, mask = jax.jit(planned)(*args)
    assert ((gradient == 2) == mask).all()
    shards = [mask[:4, 16 * rank : 16 * rank + 16] for rank in range(4)]
    assert all((shards[0] != other).any() for other in shards[1:])
    assert (mask[:4] == mask[4:]).all()  # data-parallel ranks share the key here


### contiguous_memory_optimization, profile


def stacked(ws, x):
    """The same blocks as turns of a scan."""

    def loss(ws):
        def block(y, w):
            return jnp.sin(jnp.tanh(jaxckpt.name(y, "block_input") @ w) @ w), None

        y, _ = jax.lax.scan(block, x, ws)
        return (y**2).sum()

    return jax.value_and_grad(loss)(ws)


CONTIGUOUS = {"partition_activations": True, "contiguous_memory_optimization": True, "number_checkpoints": DEPTH}


@pytest.mark.skipif(not GPU, reason="no compile-only GPU")
def test_checkpoints_of_a_scan_wait_in_one_buffer_of_shards():
    mesh = jax.sharding.AbstractMesh((8,), ("model",), axis_types=(AxisType.Auto,))
    whole = NamedSharding(mesh, PartitionSpec())
    weights = jax.ShapeDtypeStruct((DEPTH, WIDTH, WIDTH), jnp.float32, sharding=whole)
    x = jax.ShapeDtypeStruct((TOKENS, WIDTH), jnp.float32, sharding=whole)
    read = jaxckpt.read_policy(json.dumps({"activation_checkpointing": CONTIGUOUS}), "deepspeed", dim=1)
    rules = tuple(Rule(match=Match(name="block_input"), decision=rule.decision) for rule in read.policy.rules[:1])
    plan = jaxckpt.Planner(stacked, weights, x, target="h200:8").follow(Policy(rules=rules, default="recompute"))
    buffers = plan.footprint.memory.buffers
    stacks = {b.offset_bytes for b in buffers if b.shape == (DEPTH, TOKENS, WIDTH // 8)}
    assert len(stacks) == 1
    assert not [b for b in buffers if b.shape == (DEPTH, TOKENS, WIDTH)]


def test_scopes_are_timed_forward_and_backward():
    rows = jaxckpt.timed_scopes(layers(3), W, X)
    blocks = [row for row in rows if row.scope.startswith("block_")]
    assert [row.scope for row in blocks] == ["block_0", "block_1", "block_2"]
    assert all(row.forward_s > 0 and row.backward_s > 0 for row in blocks)
    assert "block_0: forward " in str(blocks[0])
    assert ", backward " in str(blocks[0])


def test_what_is_computed_again_is_timed_with_the_backward():
    policy = regions("block_*")
    plain, frugal = (
        sum(row.ops for row in jaxckpt.timed_scopes(step, W, X))
        for step in (layers(3), jaxckpt.apply(layers(3), policy))
    )
    assert frugal > plain
