"""Scopes on NNX: state goes in and comes out, shared references stay shared."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxckpt import scope
from tests.annotate.residuals import DOTS, SAVE_NOTHING, assert_same, count

X = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)


class Block(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(4, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, momentum=0.5, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.calls = nnx.Variable(jnp.array(0))

    def __call__(self, x, *, scale=None):
        self.calls[...] += 1
        return self.dropout(jnp.tanh(self.norm(self.linear(x))))

    def half(self, x):
        return jnp.tanh(self.linear(x))


def gradient(model):
    def loss(model):
        return (model(X, scale=None) ** 2).sum()

    value, gradients = nnx.value_and_grad(loss)(model)
    return value, nnx.to_pure_dict(gradients), nnx.to_pure_dict(nnx.state(model))


def test_statistics_random_counts_and_variables_change_once():
    plain = gradient(Block(nnx.Rngs(0)))
    scoped = gradient(scope(Block, policy=SAVE_NOTHING)(nnx.Rngs(0)))
    assert_same(scoped, plain)
    assert scoped[2]["calls"] == 1


@pytest.mark.parametrize("use", ["class", "method", "unbound", "function", "object"])
def test_classes_objects_methods_and_functions_take_a_scope(use):
    half = {
        "class": lambda block: scope(Block, policy=SAVE_NOTHING, methods="half").half.__get__(block),
        "method": lambda block: scope(block.half, policy=SAVE_NOTHING),
        "unbound": lambda block: partial(scope(Block.half, policy=SAVE_NOTHING), block),
        "function": lambda block: partial(scope(lambda m, x: m.half(x), policy=SAVE_NOTHING), block),
        "object": lambda block: scope(block, policy=SAVE_NOTHING, methods="half").half,
    }[use]
    graph, state = nnx.split(Block(nnx.Rngs(0)))

    def loss(x, half):
        return half(nnx.merge(graph, state, copy=True))(x).sum()

    assert_same(jax.grad(loss)(X, half), jax.grad(loss)(X, lambda block: block.half))
    assert count(lambda x: jax.grad(loss)(x, half), X)["tanh"] == 2


def test_an_object_keeps_its_variables_and_its_class():
    before = Block.__call__
    block = Block(nnx.Rngs(0))
    scoped = scope(block, policy=DOTS)
    assert scoped.linear is block.linear
    assert isinstance(scoped, Block)
    assert type(scoped).__name__ == "Block"
    assert Block.__call__ is before
    assert type(block) is Block


def test_shared_modules_stay_shared():
    class Twice(nnx.Module):
        def __init__(self, wrap, rngs):
            self.one = wrap(Block)(rngs)
            self.other = self.one

        def __call__(self, x, *, scale=None):
            return self.other(self.one(x))

    plain = Twice(lambda cls: cls, nnx.Rngs(0))
    scoped = Twice(lambda cls: scope(cls, policy=DOTS), nnx.Rngs(0))
    assert_same(gradient(scoped), gradient(plain))
    assert scoped.one.calls[...] == 2


def test_modules_under_jit_and_scan():
    @nnx.split_rngs(splits=3)
    @nnx.vmap(in_axes=(0, None), out_axes=0)
    def layers(rngs, wrap):
        return wrap(Block)(rngs)

    def run(wrap):
        stack = layers(nnx.Rngs(0), wrap)

        @nnx.jit
        def step(stack, x):
            @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
            def forward(block, x):
                return block(x)

            return nnx.grad(lambda stack: forward(stack, x).sum())(stack)

        return nnx.to_pure_dict(step(stack, X)), nnx.to_pure_dict(nnx.state(stack))

    assert_same(run(lambda cls: scope(cls, policy=SAVE_NOTHING, prevent_cse=False)), run(lambda cls: cls))
