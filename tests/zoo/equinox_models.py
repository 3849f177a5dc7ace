"""Equinox models: modules are pytrees, differentiated by `filter_value_and_grad`.

The MLP has functions among its leaves, so that arrays and statics are partitioned before `jit`; the transformer marks
its statics as static fields and goes through `jit` whole. Neither gives a module path in the name stack. Layers are
written for one example and mapped over the batch.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from tests.zoo.case import SIZES, Case, cross_entropy, integers, normal, quick_jit


class Block(eqx.Module):
    norm_1: eqx.nn.LayerNorm
    qkv: eqx.nn.Linear
    out: eqx.nn.Linear
    norm_2: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    heads: int = eqx.field(static=True)
    residual_scale: float = eqx.field(static=True)

    def __init__(self, width: int, heads: int, depth: int, *, key):
        keys = jax.random.split(key, 4)
        self.norm_1 = eqx.nn.LayerNorm(width)
        self.qkv = eqx.nn.Linear(width, 3 * width, key=keys[0])
        self.out = eqx.nn.Linear(width, width, key=keys[3])
        self.norm_2 = eqx.nn.LayerNorm(width)
        self.up = eqx.nn.Linear(width, 4 * width, key=keys[1])
        self.down = eqx.nn.Linear(4 * width, width, key=keys[2])
        self.heads = heads
        self.residual_scale = depth**-0.5

    def __call__(self, x):
        qkv = jax.vmap(self.qkv)(jax.vmap(self.norm_1)(x)).reshape(len(x), self.heads, -1)
        mixed = jax.nn.dot_product_attention(*jnp.split(qkv, 3, axis=-1), is_causal=True)
        x = x + self.residual_scale * jax.vmap(self.out)(mixed.reshape(x.shape))
        hidden = jax.nn.gelu(jax.vmap(self.up)(jax.vmap(self.norm_2)(x)))
        return x + self.residual_scale * jax.vmap(self.down)(hidden)


class Transformer(eqx.Module):
    embed: eqx.nn.Embedding
    blocks: tuple[Block, ...]
    head: eqx.nn.Linear

    def __init__(self, vocabulary: int, width: int, heads: int, depth: int, *, key):
        keys = jax.random.split(key, depth + 2)
        self.embed = eqx.nn.Embedding(vocabulary, width, key=keys[0])
        self.blocks = tuple(Block(width, heads, depth, key=k) for k in keys[2:])
        self.head = eqx.nn.Linear(width, vocabulary, key=keys[1])

    def __call__(self, tokens):
        x = jax.vmap(self.embed)(tokens)
        for block in self.blocks:
            x = block(x)
        return jax.vmap(self.head)(x)


def mlp(size: str = "tiny") -> Case:
    s = SIZES[size]
    draw = np.random.default_rng(0)
    x, y = normal(draw, 4 * s.batch, s.width), normal(draw, 4 * s.batch, 1)

    model = eqx.nn.MLP(s.width, 1, 2 * s.width, s.depth, activation=jax.nn.softplus, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)
    optimizer = optax.adam(1e-3)

    @eqx.filter_value_and_grad
    def loss_fn(model, x, y):
        return jnp.mean((jax.vmap(model)(x) - y) ** 2)

    def make_step(params, opt_state, x, y):
        loss, grads = loss_fn(eqx.combine(params, static), x, y)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return eqx.apply_updates(params, updates), opt_state, loss

    return Case(step=make_step, args=(params, quick_jit(optimizer.init)(params), x, y), donate_argnums=(0, 1))


def transformer(size: str = "tiny") -> Case:
    s = SIZES[size]
    tokens = integers(np.random.default_rng(0), s.vocabulary, s.batch, s.length + 1)
    model = quick_jit(lambda key: Transformer(s.vocabulary, s.width, s.heads, s.depth, key=key))(jax.random.key(0))
    optimizer = optax.adam(1e-3)

    @eqx.filter_value_and_grad(has_aux=True)
    def loss_fn(model, tokens):
        logits = jax.vmap(model)(tokens[:, :-1])
        return cross_entropy(logits, tokens[:, 1:]), jnp.mean(logits.argmax(-1) == tokens[:, 1:])

    def make_step(model, opt_state, tokens):
        (loss, accuracy), grads = loss_fn(model, tokens)
        updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), opt_state, loss, accuracy

    opt_state = quick_jit(optimizer.init)(eqx.filter(model, eqx.is_inexact_array))
    return Case(step=make_step, args=(model, opt_state, tokens))
