"""Generated arguments: what is drawn for each type, where it lies, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxckpt import UnverifiableError
from jaxckpt.calling import Calling
from jaxckpt.verifier import make_inputs
from jaxckpt.verifier.inputs import copies


def described(shape, dtype, **options):
    return jax.ShapeDtypeStruct(shape, dtype, **options)


STATIC_FOURTH = Calling(lambda *args: args, static_argnums=3)


def drawn(shape, dtype, **options):
    return make_inputs([described(shape, dtype, **options)]).args[0]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "complex64"])
def test_floats_are_small_and_normal(dtype):
    deviations = {(2000,): 0.25, (100, 40): 0.1, (64, 2, 16): 0.125, (2, 1000): 0.5, (9999, 2): 0.02}
    for shape, deviation in deviations.items():
        numbers = np.asarray(drawn(shape, dtype)).astype(np.complex64)
        assert numbers.real.std() == pytest.approx(deviation, rel=0.1)
        assert abs(numbers.real.mean()) < 0.1 * deviation
    assert (numbers.imag.std() > 0) == (dtype == "complex64")


@pytest.mark.parametrize("dtype", ["int32", "int8", "uint16", "int4"])
def test_integers_are_0_to_3(dtype):
    assert set(np.asarray(drawn((200,), dtype)).astype(int).tolist()) == {0, 1, 2, 3}


def test_a_number_of_steps_is_1_and_booleans_are_both():
    assert drawn((), jnp.int32) == 1
    assert set(drawn((50,), jnp.bool_).tolist()) == {False, True}


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg", "unsafe_rbg"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_typed_keys_are_real_and_of_their_own_kind(implementation, shape):
    key = jax.random.key(0, impl=implementation)
    made = drawn(shape, key.dtype)
    assert made.dtype == key.dtype
    assert made.shape == shape
    jax.random.normal(made.reshape(-1)[0])


def test_a_uint32_pair_is_a_key():
    made = drawn((4, 2), jnp.uint32)
    assert made.max() > 1000
    jax.random.normal(made[0])


def test_equal_places_are_drawn_alike_and_others_are_not():
    args = [described((8,), jnp.float32), described((8,), jnp.float32)]
    first, again = make_inputs(args).args, make_inputs(args).args
    assert (first[0] == again[0]).all()
    assert (first[0] != first[1]).any()


def test_a_tame_drawing_is_positive_and_counts_to_1():
    made = make_inputs([described((200,), jnp.float32), described((200,), jnp.int32)], tame=True).args
    assert made[0].min() >= 0
    assert set(made[1].tolist()) == {0, 1}


def test_what_is_given_stays_and_what_is_drawn_is_named():
    array, static = jnp.ones(3), object()
    made = make_inputs([{"a": described((2,), jnp.float32), "b": array}, 2.5, None, static], calling=STATIC_FOURTH)
    assert made.args[0]["b"] is array
    assert made.args[1:] == (2.5, None, static)
    assert made.generated == ("[0]['a']",)


def test_copies_are_arrays_of_their_own_with_the_same_sharding():
    mesh = Mesh(jax.devices()[:4], ("data",))
    array = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, PartitionSpec("data")))
    key = jax.random.key(0)
    copied, copied_key, number, static = copies([array, key, 3, "static"], calling=STATIC_FOURTH)
    array.delete()
    assert copied.sharding.spec == PartitionSpec("data")
    assert copied.tolist() == list(range(8))
    assert copied_key == key
    assert (number, static) == (3, "static")


def test_a_description_on_a_mesh_is_sharded_on_the_mesh():
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    sharding = NamedSharding(mesh, PartitionSpec("data", "model"))
    made = drawn((8, 4), jnp.float32, sharding=sharding)
    assert made.sharding == sharding
    assert (made == drawn((8, 4), jnp.float32)).all()


def test_a_mesh_without_devices_is_rebuilt_on_the_attached_ones():
    mesh = jax.sharding.AbstractMesh((4,), ("data",))
    made = drawn((8,), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("data")))
    assert len(made.sharding.device_set) == 4
    assert made.sharding.spec == PartitionSpec("data")


def test_a_mesh_of_too_many_devices_is_refused():
    sharding = NamedSharding(jax.sharding.AbstractMesh((64,), ("data",)), PartitionSpec("data"))
    with pytest.raises(UnverifiableError, match=r"a mesh of 64 devices[\s\S]*xla_force_host_platform_device_count"):
        drawn((64,), jnp.float32, sharding=sharding)


def test_arguments_larger_than_the_memory_are_not_generated():
    with pytest.raises(UnverifiableError, match=r"the largest of them \[0\]\['w'\][\s\S]*a smaller model"):
        make_inputs([{"b": described((4,), jnp.float32), "w": described((1 << 30, 1 << 20), jnp.float32)}])
