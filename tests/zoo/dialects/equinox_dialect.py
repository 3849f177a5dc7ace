"""The transformer in Equinox: modules are pytrees, written for one example and mapped over the batch."""

import equinox as eqx
import jax
from jax.ad_checkpoint import checkpoint_name

from tests.zoo.case import Case
from tests.zoo.dialects.shared import (
    BATCH,
    DEPTH,
    HIDDEN,
    LENGTH,
    RATE,
    VOCABULARY,
    WIDTH,
    attend,
    gate,
    tokens,
    train_step,
)


class Block(eqx.Module):
    norm_1: eqx.nn.LayerNorm
    qkv: eqx.nn.Linear
    out: eqx.nn.Linear
    norm_2: eqx.nn.BatchNorm
    wi: eqx.nn.Linear
    wo: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __init__(self, *, key):
        keys = jax.random.split(key, 4)
        self.norm_1 = eqx.nn.LayerNorm(WIDTH)
        self.qkv = eqx.nn.Linear(WIDTH, 3 * WIDTH, key=keys[0])
        self.out = eqx.nn.Linear(WIDTH, WIDTH, key=keys[1])
        self.norm_2 = eqx.nn.BatchNorm(WIDTH, "batch", mode="batch", momentum=0.9)
        self.wi = eqx.nn.Linear(WIDTH, 2 * HIDDEN, use_bias=False, key=keys[2])
        self.wo = eqx.nn.Linear(HIDDEN, WIDTH, use_bias=False, key=keys[3])
        self.dropout = eqx.nn.Dropout(RATE)

    def __call__(self, x, statistics, key):
        x = checkpoint_name(x, "decoder_layer_input")
        first, second = jax.random.split(key)
        mixed = attend(jax.vmap(self.qkv)(jax.vmap(self.norm_1)(x)))
        x = x + self.dropout(checkpoint_name(jax.vmap(self.out)(mixed), "out_proj"), key=first)
        normed, statistics = self.norm_2(x.T, statistics)  # channels come first here
        made = jax.vmap(self.wo)(gate(jax.vmap(self.wi)(normed.T)))
        return x + self.dropout(checkpoint_name(made, "mlpwo"), key=second), statistics


class Transformer(eqx.Module):
    embed: eqx.nn.Embedding
    position: jax.Array
    blocks: tuple[Block, ...]
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, DEPTH + 3)
        self.embed = eqx.nn.Embedding(VOCABULARY, WIDTH, key=keys[0])
        self.position = 0.02 * jax.random.normal(keys[1], (LENGTH, WIDTH))
        self.blocks = tuple(Block(key=k) for k in keys[3:])
        self.norm = eqx.nn.LayerNorm(WIDTH)
        self.head = eqx.nn.Linear(WIDTH, VOCABULARY, use_bias=False, key=keys[2])

    def __call__(self, tokens, statistics, key):
        x = jax.vmap(self.embed)(tokens) + self.position
        for i, block in enumerate(self.blocks):
            x, statistics = block(x, statistics, jax.random.fold_in(key, i))
        return jax.vmap(self.head)(jax.vmap(self.norm)(x)), statistics


def build() -> Case:
    model, statistics = eqx.nn.make_with_state(Transformer)(jax.random.key(1))
    params, rest = eqx.partition(model, eqx.is_inexact_array)

    def forward(params, statistics, tokens, key):
        mapped = jax.vmap(eqx.combine(params, rest), axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))
        return mapped(tokens, statistics, jax.random.split(key, BATCH))

    state = {"params": params, "statistics": statistics}
    return Case(step=train_step(forward), args=(state, tokens(), jax.random.key(0)))
