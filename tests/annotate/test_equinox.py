"""Scopes on Equinox modules and other callables: pytrees keep their leaves and their paths."""

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxckpt import scope
from tests.annotate.residuals import DOTS, SAVE_NOTHING, assert_same, count

X = jnp.linspace(-1.0, 1.0, 4)
MLP = eqx.nn.MLP(4, 4, 8, 1, activation=jnp.tanh, key=jax.random.key(0))


def gradient(module):
    return eqx.filter_grad(lambda module, x: module(x).sum())(module, X)


def leaves(module):
    return eqx.filter(module, eqx.is_array)


def test_a_class_makes_modules_with_the_same_leaves():
    scoped = scope(eqx.nn.MLP, policy=SAVE_NOTHING)(4, 4, 8, 1, activation=jnp.tanh, key=jax.random.key(0))
    assert_same(leaves(scoped), leaves(MLP))
    assert_same(leaves(gradient(scoped)), leaves(gradient(MLP)))
    assert type(scoped).__name__ == "MLP"


def test_an_object_stays_a_module_with_parameters():
    scoped = scope(MLP, policy=SAVE_NOTHING)
    assert isinstance(scoped, eqx.nn.MLP)
    assert_same(leaves(scoped), leaves(MLP))
    assert_same(leaves(gradient(scoped)), leaves(gradient(MLP)))
    assert type(MLP) is eqx.nn.MLP
    assert count(lambda x: jax.grad(lambda x: scoped(x).sum())(x), X)["tanh"] == 2


def test_a_module_among_the_arguments_is_traced_by_its_arrays():
    part = scope(lambda module, x, *, inference: module(x), policy=DOTS)
    gradients = eqx.filter_grad(lambda module: part(module, X, inference=True).sum())(MLP)
    assert_same(leaves(gradients), leaves(gradient(MLP)))


def test_any_object_that_can_be_called_may_have_a_scope():
    class Layer:
        def __init__(self, w):
            self.w = w

        def __call__(self, x):
            return jnp.tanh(self.w * x)

    def loss(w, wrap):
        return wrap(Layer(w))(X).sum()

    scoped = jax.grad(loss)(X, lambda layer: scope(layer, policy=SAVE_NOTHING))
    assert_same(scoped, jax.grad(loss)(X, lambda layer: layer))
