"""What is under a step's wrappers; canaries for the attributes of other libraries that `_compat` reads."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxckpt import ArgumentError, _compat
from jaxckpt.calling.wrappers import unwrap


def step(a, b=1, c=2):
    return a


def test_the_function_under_a_jit_of_nnx_is_found_with_its_options():
    found = _compat.nnx_jit(nnx.jit(step, donate_argnums=0, static_argnames="c"))
    assert (found.function, found.bound, found.has_shardings) == (step, (), False)
    assert found.options.donated == {0, "a"}
    assert found.options.static == {2, "c"}
    assert _compat.nnx_jit(nnx.jit(step, graph=False)).function is step
    assert _compat.nnx_jit(jax.jit(step)) is None
    assert _compat.jit_options(nnx.jit(step)) is None


def test_variables_of_a_partial_jit_of_nnx_are_bound():
    found = unwrap(nnx.jit_partial(step, nnx.Param(jnp.ones(2)), graph=False))
    assert [type(each) for each in found.bound[0]] == [nnx.Param]


def test_what_a_cached_partial_of_nnx_binds_is_found():
    jitted = nnx.jit(step, donate_argnums=0)
    found = unwrap(nnx.cached_partial(jitted, nnx.Param(jnp.ones(2))))
    assert (found.function, found.jit, found.donated) == (step, "nnx", {0, "a"})
    assert [type(each) for each in found.bound] == [nnx.Param]
    assert _compat.nnx_cached_partial(functools.partial(jitted)) is None
    assert _compat.nnx_cached_partial(step) is None


@pytest.mark.parametrize(
    ("donate", "donated"),
    [("none", set()), ("all", {0, 1, "b"}), ("warn-except-first", {1, "b"})],
)
def test_the_function_under_a_jit_of_equinox_is_found_with_its_donation(donate, donated):
    found = unwrap(eqx.filter_jit(step, donate=donate))
    assert (found.function, found.jit) == (step, "equinox")
    assert {key for key in (0, 1, "b") if found.donates(key)} == donated


def test_positions_count_what_partials_and_methods_bind():
    def method(self, a, b):
        return a

    bound = functools.partial(method, jnp.ones(2))
    found = unwrap(nnx.jit(bound, static_argnums=1, donate_argnums=0))
    assert found.function is method
    assert found.static >= {2}
    assert found.donates(1)


def test_what_binds_no_arrays_is_left_alone():
    partial = functools.partial(step, b=3)
    assert unwrap(partial).function is partial
    assert unwrap("text".replace).function == "text".replace
    assert unwrap(functools.wraps(jax.jit(step))(lambda *args: 1)).jit == ""


def test_shardings_of_a_jit_of_nnx_are_refused():
    whole = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with pytest.raises(ArgumentError, match="in_shardings"):
        unwrap(nnx.jit(step, in_shardings=whole))
