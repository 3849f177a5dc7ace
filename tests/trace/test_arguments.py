"""Arguments of a step, and the options that a jitted step brings along."""

import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxckpt._errors import ArgumentError
from jaxckpt.trace import trace_step


def loss(w, x):
    return jnp.sum(jnp.sin(x @ w))


step = jax.grad(loss)
W, X = jnp.ones((3, 2)), jnp.ones((4, 3))


def described(array, sharding=None):
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)


def test_arrays_and_their_descriptions_give_one_graph():
    graph = trace_step(step, W, X).graph
    assert trace_step(step, described(W), described(X)).graph.fingerprint == graph.fingerprint
    assert trace_step(step, np.asarray(W), described(X)).graph.fingerprint == graph.fingerprint


def test_numbers_none_and_keys_are_arguments():
    def noisy(w, scale, flag, nothing, key):
        return jax.grad(lambda w: jnp.sum(jnp.sin(w * scale + flag) * jax.random.normal(key, (3, 2))))(w)

    traced = trace_step(noisy, W, 2.0, True, None, jax.random.key(0))
    assert traced.paths == ("w", "scale", "flag", "key")
    assert [str(spec.dtype) for spec in traced.specs] == ["float32", "float32", "bool", "key<fry>"]
    assert traced.specs[1].weak_type


def test_keywords_are_arguments():
    traced = trace_step(step, W, kwargs={"x": {"a": X}["a"]})
    assert traced.paths == ("w", "x")


def test_leaves_that_are_no_arrays_are_named_where_jit_refuses_them():
    with pytest.raises(ArgumentError) as caught:
        trace_step(jax.jit(step), {"w": W, "act": jnp.tanh, "name": "relu"}, X)
    assert [path for path, _ in caught.value.wrong] == ["w['act']", "w['name']"]
    assert "(1) w['act']" in str(caught.value)
    assert "(2) w['name'] is a str" in str(caught.value)
    assert "2 of the step's 4" in str(caught.value)


def test_types_of_leaves_are_told_with_their_dtypes():
    with pytest.raises(ArgumentError, match="x is a ndarray of dtype object"):
        trace_step(jax.jit(step), W, np.array(["a"], dtype=object))


@pytest.mark.parametrize("leaf", [object(), "text", np.array(["a"]), np.array([object()])])
def test_leaves_that_are_no_arrays_are_static(leaf):
    assert trace_step(lambda w, x: step(w, X), W, leaf).paths == ("w",)
    with pytest.raises(ArgumentError):
        trace_step(jax.jit(step), W, leaf)


def test_static_arguments_are_not_traced():
    def repeated(w, x, times):
        return jax.grad(lambda w: sum(loss(w, x) for _ in range(times)))(w)

    traced = trace_step(repeated, W, X, 3, static_argnums=(2,))
    assert traced.paths == ("w", "x")
    assert trace_step(repeated, W, X, 3, static_argnums=-1).graph.fingerprint == traced.graph.fingerprint
    jitted = jax.jit(repeated, static_argnums=2)
    assert trace_step(jitted, W, X, 3).graph.fingerprint == traced.graph.fingerprint
    assert trace_step(jitted, W, X, 3, static_argnums=2).graph.fingerprint == traced.graph.fingerprint


def test_static_positions_that_the_jit_does_not_know_are_refused():
    with pytest.raises(ArgumentError, match="jitted already"):
        trace_step(jax.jit(step), W, X, static_argnums=(1,))


def test_donation_is_said_or_taken_over():
    def update(state, x):
        return jax.tree.map(lambda w, g: w - g, state, jax.grad(lambda s: loss(s["a"] + s["b"], x))(state))

    state = {"a": W, "b": W}
    with_argnums = trace_step(update, state, X, donate_argnums=0)
    taken = trace_step(jax.jit(update, donate_argnums=0), state, X)
    both = trace_step(jax.jit(update, donate_argnums=0), state, X, donate_argnums=-1)
    assert with_argnums.donated == taken.donated == frozenset({0, 1})
    assert both.donated == frozenset({0, 1, 2})
    assert with_argnums.graph.donated == {with_argnums.graph.inputs[0], with_argnums.graph.inputs[1]}
    assert with_argnums.graph.fingerprint == trace_step(update, state, X).graph.fingerprint


def test_shardings_are_kept_and_counted():
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split = NamedSharding(mesh, PartitionSpec("data"))
    traced = trace_step(step, described(W), described(X, split))
    assert traced.specs[1].sharding == split
    sizes = [traced.graph.values[v].size_bytes for v in traced.graph.inputs]
    assert sizes == [3 * 2 * 4, 4 * 3 * 4 // 4]

    replicated = NamedSharding(mesh, PartitionSpec())
    jitted = jax.jit(step, in_shardings=(replicated, split), out_shardings=replicated)
    traced = trace_step(jitted, described(W), described(X))
    assert traced.in_shardings == (replicated, split)
    assert traced.out_shardings == (replicated,)
    assert [traced.graph.values[v].size_bytes for v in traced.graph.inputs] == sizes


def test_the_step_s_own_exception_comes_out_untouched():
    class Mine(Exception):
        pass

    def broken(w, x):
        raise Mine("my own")

    with pytest.raises(Mine, match="my own") as caught:
        trace_step(broken, W, X)
    assert caught.value.__cause__ is None
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "broken"


def test_the_flat_function_is_the_step_as_written():
    @jax.checkpoint
    def block(w, x):
        return jnp.sin(x @ w)

    traced = trace_step(jax.grad(lambda w, x: jnp.sum(block(w, x))), W, X)
    flat = jax.make_jaxpr(traced.flat_function())(*traced.specs)
    assert "remat2" in str(flat) or "checkpoint" in str(flat)
    assert "remat2" not in str(traced.jaxpr)
    assert "checkpoint" not in str(traced.jaxpr)


def test_an_automatic_mesh_does_not_change_the_graph():
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split = NamedSharding(mesh, PartitionSpec("data"))
    graph = trace_step(step, W, X).graph
    assert trace_step(step, W, described(X, split)).graph.fingerprint == graph.fingerprint
    assert trace_step(step, W, jax.device_put(X, split)).graph.fingerprint == graph.fingerprint
    assert "reshard" not in {op.primitive for op in graph.ops}
