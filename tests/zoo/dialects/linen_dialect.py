"""The transformer in Flax Linen: modules with paths, statistics in a mutable collection."""

import flax.linen as nn
import jax
from jax.ad_checkpoint import checkpoint_name

from tests.zoo.case import Case, quick_jit
from tests.zoo.dialects.shared import DEPTH, HIDDEN, RATE, VOCABULARY, WIDTH, attend, gate, tokens, train_step


class Attention(nn.Module):
    @nn.compact
    def __call__(self, x):
        mixed = attend(nn.Dense(3 * WIDTH, name="qkv")(x))
        return checkpoint_name(nn.Dense(WIDTH, name="out")(mixed), "out_proj")


class FeedForward(nn.Module):
    @nn.compact
    def __call__(self, x):
        hidden = gate(nn.Dense(2 * HIDDEN, use_bias=False, name="wi")(x))
        return checkpoint_name(nn.Dense(WIDTH, use_bias=False, name="wo")(hidden), "mlpwo")


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = checkpoint_name(x, "decoder_layer_input")
        x = x + nn.Dropout(RATE, deterministic=False)(Attention(name="attention")(nn.LayerNorm()(x)))
        normed = nn.BatchNorm(use_running_average=False, momentum=0.9)(x)
        return x + nn.Dropout(RATE, deterministic=False)(FeedForward(name="mlp")(normed))


class Transformer(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        position = self.param("position", nn.initializers.normal(0.02), (tokens.shape[1], WIDTH))
        x = nn.Embed(VOCABULARY, WIDTH, name="embed")(tokens) + position
        for i in range(DEPTH):
            x = Block(name=f"block_{i}")(x)
        return nn.Dense(VOCABULARY, use_bias=False, name="head")(nn.LayerNorm(name="norm")(x))


def build() -> Case:
    model = Transformer()

    def forward(params, statistics, tokens, key):
        logits, moved = model.apply(
            {"params": params, "batch_stats": statistics}, tokens, mutable=["batch_stats"], rngs={"dropout": key}
        )
        return logits, moved["batch_stats"]

    @quick_jit
    def init(key):
        variables = model.init({"params": key, "dropout": key}, tokens()[:, :-1])
        return {"params": variables["params"], "statistics": variables["batch_stats"]}

    return Case(step=train_step(forward), args=(init(jax.random.key(1)), tokens(), jax.random.key(0)))
