"""A step as flat arrays: what its jit said is taken over, what is no array is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxckpt import _compat
from jaxckpt._errors import ArgumentError
from jaxckpt._step import Step
from jaxckpt.compiler import LoweredStep, lower_step
from jaxckpt.machine import Target


def lowered(step, args, **options) -> LoweredStep:
    return lower_step(Step(step, args, **options), Target("cpu"))


def run(flat, *arrays):
    return flat.lowered.compile()(*arrays)


def update(state, batch, rate):
    return {"w": state["w"] - rate * batch}, (state["w"] * batch).sum()


STATE = {"w": jnp.ones((3, 4))}
BATCH = jax.ShapeDtypeStruct((3, 4), jnp.float32)


def test_pytrees_numbers_and_descriptions_become_flat_arrays():
    flat = lowered(update, (STATE, BATCH, 0.5), donate_argnums=0)
    assert [(spec.shape, spec.dtype) for spec in flat.placed] == [
        ((3, 4), jnp.float32),
        ((3, 4), jnp.float32),
        ((), jnp.float32),
    ]
    assert flat.donated == {0}
    assert flat.name == "update"
    new, loss = run(flat, jnp.ones((3, 4)), jnp.full((3, 4), 2.0), jnp.float32(0.5))
    assert float(loss) == 24.0
    assert (new == 0).all()


def test_a_jitted_step_keeps_donation_and_options():
    jitted = jax.jit(
        lambda batch, sign, state: update(state, batch, sign * 0.5),
        donate_argnums=2,
        static_argnums=1,
        compiler_options={"xla_embed_ir_in_executable": True},
    )
    flat = lowered(jitted, (BATCH, 3, STATE))
    assert len(flat.placed) == 2
    assert flat.donated == {1}
    assert flat.compiler_options == (("xla_embed_ir_in_executable", True),)


def test_static_positions_of_a_plain_step_may_be_anything():
    flat = lowered(lambda x, how: x * len(how), (BATCH, "twice"), static_argnums=(1,))
    assert len(flat.placed) == 1


def test_shardings_of_the_jit_go_before_those_of_the_arguments():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split = NamedSharding(mesh, PartitionSpec("data"))
    flat = lowered(jax.jit(lambda x: x + 1, in_shardings=split, out_shardings=split), (BATCH,))
    assert flat.placed[0].sharding == split
    assert _compat.traced_leaves(flat.traced).out_shardings == (split,)
    flat = lowered(lambda x: x + 1, (jax.device_put(np.ones((4, 4)), split),))
    assert flat.placed[0].sharding == split
    assert _compat.traced_leaves(flat.traced).out_shardings == (None,)


def test_a_jitted_step_may_be_given_more_donation_but_no_static_arguments():
    with pytest.warns(UserWarning, match="donated buffers were not usable"):  # one result for two
        flat = lowered(jax.jit(update, donate_argnums=1), (STATE, BATCH, 0.5), donate_argnums=0)
    assert flat.donated == {0, 1}
    with pytest.raises(ArgumentError, match="jitted already") as caught:
        lowered(jax.jit(update), (STATE, BATCH, 0.5), static_argnums=2)
    assert isinstance(caught.value, TypeError)


def test_an_argument_that_is_no_array_is_named_where_jit_refuses_it():
    with pytest.raises(ArgumentError, match="how is a str") as caught:
        lowered(jax.jit(lambda x, how: x), (BATCH, "twice"))
    assert "static_argnames" in str(caught.value)


def test_errors_of_the_step_itself_pass_through():
    def broken(x):
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        lowered(broken, (BATCH,))


class Checked:
    """A pytree that takes arrays and descriptions only, as module systems do."""

    def __init__(self, leaf):
        if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
            raise TypeError(f"no array: {leaf!r}")
        self.leaf = leaf


jax.tree_util.register_pytree_node(Checked, lambda node: ((node.leaf,), None), lambda _, leaves: Checked(*leaves))


def test_pytrees_that_check_their_leaves_are_never_rebuilt():
    step = jax.jit(lambda node: Checked(node.leaf + 1), donate_argnums=0)
    flat = lowered(step, (Checked(BATCH),))
    assert flat.donated == {0}
    with pytest.raises(TypeError, match="ArgInfo"):  # the reason for _compat.traced_leaves
        _ = step.trace(Checked(BATCH)).args_info


def test_typed_keys_are_arguments_like_others():
    keys = jax.random.split(jax.random.key(0), 5)
    flat = lowered(lambda keys: jax.random.normal(keys[0], (3,)), (keys,))
    assert flat.placed[0].shape == (5,)
    assert jax.dtypes.issubdtype(flat.placed[0].dtype, jax.dtypes.prng_key)


def test_closures_stay_and_arrays_of_partials_are_arguments():
    held = jnp.arange(12.0).reshape(3, 4)
    flat = lowered(functools.partial(update, STATE), (BATCH, 0.5))
    assert flat.argument_paths == ("state['w']", "batch", "rate")
    assert flat.name == "update"
    (total,) = run(lowered(lambda x: (x * held).sum(), (BATCH,)), jnp.ones((3, 4)))
    assert float(total) == 66.0


def test_jit_drops_the_arguments_that_nothing_reads():
    traced = jax.jit(lambda x, y, z: (y + 1, jnp.zeros_like(z))).trace(BATCH, BATCH, BATCH)
    assert _compat.read_arguments(traced) == (False, True, False)
    assert traced.lower().compile().memory_analysis().argument_size_in_bytes == 48
