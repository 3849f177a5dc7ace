"""Named random streams: errors, forks and resets, ranks, and masks that are drawn a second time in the backward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

import jaxckpt
from jaxckpt import ArgumentError, Policy, RandomStreams

STREAMS = RandomStreams().add("dropout", 0).add("noise", 1)


def bits(key):
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


def test_a_name_or_a_seed_that_exists_is_refused():
    with pytest.raises(ArgumentError, match="of this name exists"):
        STREAMS.add("dropout", 7)
    with pytest.raises(ArgumentError, match="of this seed exists"):
        STREAMS.add("other", 1)
    with pytest.raises(ArgumentError, match="closest is 'dropout'"):
        STREAMS.fork("dropuot")
    with pytest.raises(ArgumentError, match="no random stream 'default'"):
        RandomStreams().reset("default")


def test_keys_differ_by_stream_and_by_fork_and_repeat_after_a_reset():
    first, after = STREAMS.fork("dropout")
    second, _ = after.fork("dropout")
    other, _ = after.fork("noise")
    assert len({bits(key) for key in (first, second, other)}) == 3
    assert bits(STREAMS.fork("dropout")[0]) == bits(first)  # no global state
    _, both = after.rngs()
    assert bits(both.reset("dropout").fork("dropout")[0]) == bits(first)
    assert bits(both.reset("dropout").fork("noise")[0]) != bits(other)
    assert bits(both.reset().fork("noise")[0]) == bits(other)


def test_streams_are_the_carry_of_a_scan_and_a_result_of_a_jit():
    @jax.jit
    def drawn(streams):
        def body(streams, _):
            key, streams = streams.fork("dropout")
            return streams, jax.random.key_data(key)

        return jax.lax.scan(body, streams, length=5)

    after, keys = drawn(STREAMS)
    one_by_one, streams = [], STREAMS
    for _ in range(5):
        key, streams = streams.fork("dropout")
        one_by_one.append(bits(key))
    assert [tuple(key) for key in np.asarray(keys).tolist()] == one_by_one
    assert bits(after.fork("dropout")[0]) == bits(streams.fork("dropout")[0])
    assert jax.tree.structure(after) == jax.tree.structure(STREAMS)


@pytest.fixture
def mesh():
    if jax.device_count() < 8:
        pytest.skip("fewer than eight devices")
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def test_the_model_parallel_stream_differs_over_the_model_axis_alone(mesh):
    def drawn(streams):
        keys, streams = streams.rngs()
        return {name: jax.random.key_data(key)[None, None] for name, key in keys.items()}, streams

    cut = PartitionSpec("data", "model")
    per_device = jax.jit(
        jax.shard_map(drawn, mesh=mesh, in_specs=(PartitionSpec(),), out_specs=(cut, PartitionSpec()), check_vma=False)
    )
    found, after = per_device(RandomStreams.model_parallel(1234))
    default = np.asarray(found["default"]).reshape(8, -1)
    parallel = np.asarray(found["model-parallel-rng"])
    assert len(np.unique(default, axis=0)) == 1
    assert (parallel[0] == parallel[1]).all()
    assert len({*map(tuple, parallel[0].tolist()), tuple(default[0].tolist())}) == 5
    assert (np.asarray(per_device(after)[0]["default"]).reshape(8, -1) != default).any()


def test_outside_of_a_shard_map_a_stream_that_differs_over_an_axis_is_refused():
    with pytest.raises(ArgumentError, match="a draw is of the array of all devices"):
        jax.jit(lambda streams: streams.fork("model-parallel-rng")[0])(RandomStreams.model_parallel(0))


@pytest.mark.parametrize("way", ["jax.checkpoint", "apply"])
def test_a_mask_that_is_drawn_a_second_time_is_equal_bit_for_bit(mesh, way):
    """The gradient of exp at 0 is 1 where the mask of the backward is set, and the loss's mask is returned."""

    def drop(x, streams):
        key, streams = streams.fork("model-parallel-rng")
        mask = jax.random.bernoulli(key, 0.5, x.shape)
        return jnp.where(mask, jnp.exp(x), 0.0), streams

    cut, same = PartitionSpec("data", "model"), PartitionSpec()
    part = jax.shard_map(drop, mesh=mesh, in_specs=(cut, same), out_specs=(cut, same), check_vma=False)
    if way == "jax.checkpoint":
        part = jax.checkpoint(part)

    def loss(x, streams):
        with jax.named_scope("block"):
            y, streams = part(x, streams)
            y, streams = part(jnp.sin(y), streams)
        return y.sum(), (y != 0, streams)

    step = jax.grad(loss, has_aux=True)
    args = jnp.full((8, 64), 0.5), RandomStreams.model_parallel(0)
    planned = jaxckpt.apply(step, Policy(default="recompute")) if way == "apply" else step
    if way == "apply":
        plain, rewritten = (str(jax.make_jaxpr(made)(*args)).count("random_bits") for made in (step, planned))
        assert rewritten > plain
    gradient, (mask, after) = jax.jit(planned)(*args)
    plain_gradient, (plain_mask, plain_after) = jax.jit(step)(*args)
    assert (mask == plain_mask).all()
    assert (gradient == plain_gradient).all()
    assert not ((gradient != 0) & ~mask).any()
    assert 0 < int((gradient != 0).sum()) < mask.size
    assert jax.tree.leaves(after) == jax.tree.leaves(plain_after) == [0, 2]


@pytest.mark.parametrize("seed", [2**32 + 3, 3 - 2**32])
def test_seeds_that_draw_the_same_bits_are_one_seed(seed):
    with pytest.raises(ArgumentError, match="of this seed exists"):
        RandomStreams().add("a", 3).add("b", seed)
