"""Steps whose layers are the turns of a scan, to be split and nested, and what holds of them afterwards."""

import flax.linen as nn
import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from jaxckpt.program.inline import open_jaxpr
from jaxckpt.program.open_loops import is_sound
from jaxckpt.verifier.interpret import run_one_by_one

X = jnp.linspace(0.1, 1.0, 6).reshape(2, 3)


def weights(length):
    return jnp.linspace(-1.0, 1.0, length * 9).reshape(length, 3, 3)


def layer(x, w):
    return x + jnp.sin(jnp.tanh(x @ w)), None


def make_step(body=layer, **options):
    def loss(w, x):
        return (jax.lax.scan(body, x, w, **options)[0] ** 2).sum()

    return jax.value_and_grad(loss)


def flax_step(length):
    """A Flax module of scanned blocks: the step, and its arguments."""

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return x + nn.Dense(3)(jnp.sin(nn.Dense(6)(nn.LayerNorm()(x)))), None

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            blocks = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=length)
            return blocks(name="blocks")(x, None)[0]

    model = Model()
    step = jax.value_and_grad(lambda params, x: (model.apply(params, x) ** 2).sum())
    return step, (model.init(jax.random.key(0), X), X)


def noisy_step(length):
    """Layers with keys of their own, which the scan goes through: the step, and its arguments."""

    def noisy(x, each):
        w, key = each
        kept = jax.random.bernoulli(key, 0.7, x.shape)
        return layer(jnp.where(kept, x, 0) * (1 + jax.random.uniform(key, x.shape)), w)

    def loss(w, keys, x):
        return (jax.lax.scan(noisy, x, (w, keys))[0] ** 2).sum()

    return jax.value_and_grad(loss), (weights(length), jax.random.split(jax.random.key(0), length), X)


def accumulated(w, xs):
    """A gradient, with a scan in it, in the body of another."""

    def turn(sums, x):
        return jax.tree.map(jnp.add, sums, make_step()(w, x)), None

    return jax.lax.scan(turn, (jnp.float32(0), jnp.zeros_like(w)), xs)[0]


def over_two_devices(length):
    """Arguments of a step, the rows over two devices."""
    automatic = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((2,), ("data",), axis_types=automatic, devices=jax.devices()[:2])
    over = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    return weights(length), jax.device_put(X, over)


def scans(jaxpr):
    return [eqn for eqn in open_jaxpr(jaxpr).eqns if eqn.primitive.name == "scan"]


def body_of(eqn):
    return open_jaxpr(eqn.params["jaxpr"])


def assert_sound(made):
    made.graph.validate()
    assert is_sound(made.program)
    jex.check_jaxpr(open_jaxpr(made.jaxpr))


def assert_same_bits(step, args, made):
    """A traced step computes what the step does, op by op."""
    assert_sound(made)
    flat = jax.tree.leaves(args)
    expected = run_one_by_one(jax.make_jaxpr(step)(*args), *flat)
    for one, other in zip(expected, run_one_by_one(made.jaxpr, *flat), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def assert_close(step, args, made):
    """A traced step computes what the step does, compiled as a whole."""
    assert_sound(made)
    expected, found = jax.jit(step)(*args), jax.jit(jex.jaxpr_as_fun(made.jaxpr))(*args)
    for one, other in zip(jax.tree.leaves(expected), found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
