"""The transformer in plain JAX: dicts of arrays, and a key folded with the place where it is used."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from tests.zoo.case import Case, weight
from tests.zoo.dialects.shared import DEPTH, HIDDEN, LENGTH, RATE, VOCABULARY, WIDTH, attend, gate, tokens, train_step


def layer_norm(p, x):
    x = x - x.mean(-1, keepdims=True)
    return p["scale"] * x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6) + p["bias"]


def batch_norm(p, statistics, x):
    """Normalised over everything but the last axis; and the statistics, a tenth of the way to this batch's."""
    mean, variance = x.mean((0, 1)), x.var((0, 1))
    moved = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, statistics, {"mean": mean, "variance": variance})
    return p["scale"] * (x - mean) * jax.lax.rsqrt(variance + 1e-5) + p["bias"], moved


def dropout(key, x):
    return jnp.where(jax.random.bernoulli(key, 1 - RATE, x.shape), x / (1 - RATE), 0)


def block(p, statistics, x, key):
    x = checkpoint_name(x, "decoder_layer_input")
    first, second = jax.random.split(key)
    mixed = attend(layer_norm(p["norm_1"], x) @ p["qkv"])
    x = x + dropout(first, checkpoint_name(mixed @ p["out"], "out_proj"))
    normed, statistics = batch_norm(p["norm_2"], statistics, x)
    return x + dropout(second, checkpoint_name(gate(normed @ p["wi"]) @ p["wo"], "mlpwo")), statistics


def forward(params, statistics, tokens, key):
    x = params["embed"][tokens] + params["position"]
    moved = []
    for i, (p, s) in enumerate(zip(params["blocks"], statistics, strict=True)):
        x, s = block(p, s, x, jax.random.fold_in(key, i))
        moved.append(s)
    return layer_norm(params["norm"], x) @ params["head"], moved


def norm_params():
    return {"scale": jnp.ones(WIDTH), "bias": jnp.zeros(WIDTH)}


def block_params(draw):
    return {
        "norm_1": norm_params(),
        "qkv": weight(draw, WIDTH, 3 * WIDTH),
        "out": weight(draw, WIDTH, WIDTH),
        "norm_2": norm_params(),
        "wi": weight(draw, WIDTH, 2 * HIDDEN),
        "wo": weight(draw, HIDDEN, WIDTH),
    }


def build() -> Case:
    draw = np.random.default_rng(1)
    params = {
        "embed": weight(draw, VOCABULARY, WIDTH),
        "position": weight(draw, LENGTH, WIDTH),
        "blocks": [block_params(draw) for _ in range(DEPTH)],
        "norm": norm_params(),
        "head": weight(draw, WIDTH, VOCABULARY),
    }
    statistics = [{"mean": jnp.zeros(WIDTH), "variance": jnp.ones(WIDTH)} for _ in range(DEPTH)]
    state = {"params": params, "statistics": statistics}
    return Case(step=train_step(forward), args=(state, tokens(), jax.random.key(0)))
