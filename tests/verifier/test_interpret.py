"""Steps run one operation at a time: the same values as JAX's own, loops and branches included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxckpt.verifier import run_one_by_one

X = jnp.linspace(-1, 1, 12).reshape(3, 4)
KEY = jax.random.key(0)


@jax.custom_vjp
def halved(x):
    return jnp.sin(x)


halved.defvjp(lambda x: (jnp.sin(x), jnp.cos(x)), lambda cosine, g: (0.5 * g * cosine,))


def scanned(x, *, length=3, reverse=False):
    def turn(carry, row):
        return jnp.tanh(carry + row), (carry * row, row.sum())

    return jax.lax.scan(turn, x[0], x[:length], reverse=reverse)


FUNCTIONS = {
    "calls": lambda x: jax.nn.softmax(jax.jit(jnp.sin)(x)) @ x.T,
    "custom": lambda x: (halved(x), jax.nn.relu(x), jax.grad(lambda y: halved(y).sum())(x)),
    "rematerialised": jax.grad(lambda x: jax.checkpoint(lambda y: jnp.sin(jnp.sin(y)))(x).sum()),
    "scan": scanned,
    "reversed": lambda x: scanned(x, reverse=True),
    "empty_scan": lambda x: scanned(x, length=0),
    "scan_gradient": jax.grad(lambda x: sum(map(jnp.sum, jax.tree.leaves(scanned(x))))),
    "while": lambda x: jax.lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, c[1] * 1.1), (0, x)),
    "while_of_arrays": lambda x: jax.lax.while_loop(lambda y: y.sum() < x.max(), lambda y: y + x[0] ** 2, x[0] * 0),
    "branch": lambda x: [jax.lax.cond(x[i, 0] > 0, jnp.sin, jnp.cos, x) for i in (0, 2)],
    "switch": lambda x: [jax.lax.switch(i, [jnp.sin, jnp.cos, jnp.tan], x) for i in (-1, 1, 7)],
    "random": lambda x: jax.random.bernoulli(KEY, 0.5, x.shape) * jax.random.normal(jax.random.fold_in(KEY, 1)),
    "literal_results": lambda x: (x, 3, jnp.zeros(2)),
    "sorted": lambda x: jax.lax.sort((x, x**2), num_keys=1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_values_are_those_of_jit(name):
    function = FUNCTIONS[name]
    found = run_one_by_one(jax.jit(function).trace(X).jaxpr, X)
    expected = jax.tree.leaves(jax.jit(function)(X))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_an_operation_is_not_fused_with_another():
    """What jit may contract into one rounding is rounded twice here."""
    x = jnp.float32(1 + 2**-12)
    product = np.float32(x) * np.float32(x)

    def step(x):
        return x * x - product

    assert run_one_by_one(jax.make_jaxpr(step)(x), x)[0] == 0


def test_effects_happen_once(capsys):
    def step(x):
        jax.debug.print("sum {}", x.sum())
        return x

    run_one_by_one(jax.jit(step).trace(X).jaxpr, X)
    jax.effects_barrier()
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_shard_map_runs_on_its_mesh():
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("data")
    step = jax.shard_map(lambda x: x - jax.lax.pmean(x, "data"), mesh=mesh, in_specs=spec, out_specs=spec)
    x = jnp.arange(8.0)
    found = run_one_by_one(jax.jit(step).trace(x).jaxpr, x)
    np.testing.assert_allclose(found[0], jax.jit(step)(x))


@pytest.mark.parametrize("check_vma", [False, True])
def test_each_operation_of_a_body_runs_on_all_devices(check_vma):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("data")

    def inside(x):
        rank = jax.lax.axis_index("data")
        turned, sums = jax.lax.scan(lambda c, row: (jnp.tanh(c + row), c.sum()), x[0] * rank, x)
        return x + turned, jax.lax.psum(sums * 2.0, "data")

    out_specs = (spec, jax.sharding.PartitionSpec())
    step = jax.shard_map(inside, mesh=mesh, in_specs=spec, out_specs=out_specs, check_vma=check_vma)
    x = jnp.sin(jnp.arange(24.0)).reshape(12, 2)
    found = run_one_by_one(jax.jit(step).trace(x).jaxpr, x)
    for one, other in zip(found, jax.jit(step)(x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_operations_of_bodies_that_differ_in_one_bit_are_compiled_apart():
    """What is compiled for one is kept for those that are equal, and -0.0 == 0.0 == False."""
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("data")
    x = jnp.ones(4)
    for zero in (0.0, -0.0, np.float16(0), 0):
        step = jax.shard_map(lambda x, zero=zero: x * zero + zero, mesh=mesh, in_specs=spec, out_specs=spec)
        (found,) = run_one_by_one(jax.jit(step).trace(x).jaxpr, x)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(jax.jit(step)(x)))
