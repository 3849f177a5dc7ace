"""The transformer in Flax NNX: modules that are changed in place, split into parameters and statistics."""

import jax
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from tests.zoo.case import Case, quick_jit
from tests.zoo.dialects.shared import DEPTH, HIDDEN, LENGTH, RATE, VOCABULARY, WIDTH, attend, gate, tokens, train_step


class Block(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs):
        self.norm_1 = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.qkv = nnx.Linear(WIDTH, 3 * WIDTH, rngs=rngs)
        self.out = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.norm_2 = nnx.BatchNorm(WIDTH, momentum=0.9, rngs=rngs)
        self.wi = nnx.Linear(WIDTH, 2 * HIDDEN, use_bias=False, rngs=rngs)
        self.wo = nnx.Linear(HIDDEN, WIDTH, use_bias=False, rngs=rngs)
        self.dropout = nnx.Dropout(RATE)

    def __call__(self, x, rngs: nnx.Rngs):
        x = checkpoint_name(x, "decoder_layer_input")
        mixed = checkpoint_name(self.out(attend(self.qkv(self.norm_1(x)))), "out_proj")
        x = x + self.dropout(mixed, rngs=rngs)
        made = checkpoint_name(self.wo(gate(self.wi(self.norm_2(x)))), "mlpwo")
        return x + self.dropout(made, rngs=rngs)


class Transformer(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs):
        self.embed = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.position = nnx.Param(0.02 * jax.random.normal(rngs.params(), (LENGTH, WIDTH)))
        self.blocks = nnx.List([Block(rngs=rngs) for _ in range(DEPTH)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, VOCABULARY, use_bias=False, rngs=rngs)

    def __call__(self, tokens, rngs: nnx.Rngs):
        x = self.embed(tokens) + self.position[...]
        for block in self.blocks:
            x = block(x, rngs)
        return self.head(self.norm(x))


def build() -> Case:
    @quick_jit
    def init():
        return nnx.split(Transformer(rngs=nnx.Rngs(1)), nnx.Param, ...)

    graphdef, params, statistics = init()

    def forward(params, statistics, tokens, key):
        model = nnx.merge(graphdef, params, statistics, copy=True)  # the step's own to change
        logits = model(tokens, nnx.Rngs(dropout=key))
        _, _, moved = nnx.split(model, nnx.Param, ...)
        return logits, moved

    state = {"params": params, "statistics": statistics}
    return Case(step=train_step(forward), args=(state, tokens(), jax.random.key(0)))
