"""A transformer in plain JAX with dicts of parameters: written out, scanned over stacked layers, embeddings tied."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from tests.zoo.case import SIZES, Case, cross_entropy, descend, integers, weight


def layer_norm(x, scale):
    x = x - x.mean(-1, keepdims=True)
    return scale * x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6)


def attention(p, x, context, *, heads: int, causal: bool):
    """Multi-head attention of `x` over `context`."""

    def split_heads(y):
        return y.reshape(*y.shape[:-1], heads, -1)

    q, k, v = split_heads(x @ p["q"]), split_heads(context @ p["k"]), split_heads(context @ p["v"])
    logits = jnp.einsum("...qhd,...khd->...hqk", q, k) / q.shape[-1] ** 0.5
    if causal:
        logits = jnp.where(jnp.tril(jnp.ones(logits.shape[-2:], bool)), logits, -1e9)
    mixed = jnp.einsum("...hqk,...khd->...qhd", jax.nn.softmax(logits), v)
    return mixed.reshape(x.shape) @ p["out"]


def feed_forward(p, x):
    return jax.nn.gelu(x @ p["up"]) @ p["down"]


def block(p, x, *, heads: int, causal: bool = True):
    normed = layer_norm(x, p["norm_1"])
    x = x + attention(p["attention"], normed, normed, heads=heads, causal=causal)
    return x + feed_forward(p["feed_forward"], layer_norm(x, p["norm_2"]))


def attention_params(draw, width: int):
    return {name: weight(draw, width, width) for name in ("q", "k", "v", "out")}


def block_params(draw, width: int):
    return {
        "attention": attention_params(draw, width),
        "feed_forward": {"up": weight(draw, width, 4 * width), "down": weight(draw, 4 * width, width)},
        "norm_1": jnp.ones(width),
        "norm_2": jnp.ones(width),
    }


def written_out(blocks, x, *, heads: int):
    for p in blocks:
        x = block(p, x, heads=heads)
    return x


def scanned(blocks, x, *, heads: int):
    return jax.lax.scan(lambda x, p: (block(p, x, heads=heads), None), x, blocks)[0]


def logits_of(params, tokens, *, heads: int, layers=written_out):
    x = params["embed"][tokens] + params["position"][: tokens.shape[1]]
    x = layer_norm(layers(params["blocks"], x, heads=heads), params["norm"])
    # Without a head of its own the embedding is the head: one parameter with two gradients to add.
    return x @ params.get("head", params["embed"].T)


def train_step(params, tokens, *, heads: int, layers=written_out):
    def loss_fn(params):
        return cross_entropy(logits_of(params, tokens[:, :-1], heads=heads, layers=layers), tokens[:, 1:])

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return descend(params, grads), loss


def build(size: str):
    s = SIZES[size]
    draw = np.random.default_rng(0)
    params = {
        "embed": weight(draw, s.vocabulary, s.width),
        "position": weight(draw, s.length, s.width),
        "blocks": [block_params(draw, s.width) for _ in range(s.depth)],
        "norm": jnp.ones(s.width),
        "head": weight(draw, s.width, s.vocabulary),
    }
    return s, params, integers(draw, s.vocabulary, s.batch, s.length + 1)


def transformer(size: str = "tiny") -> Case:
    s, params, tokens = build(size)
    return Case(step=partial(train_step, heads=s.heads), args=(params, tokens), donate_argnums=(0,))


def transformer_scan(size: str = "tiny") -> Case:
    s, params, tokens = build(size)
    params["blocks"] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params["blocks"])
    step = partial(train_step, heads=s.heads, layers=scanned)
    return Case(step=step, args=(params, tokens), donate_argnums=(0,))


def tied_transformer(size: str = "tiny") -> Case:
    s, params, tokens = build(size)
    del params["head"]
    return Case(step=partial(train_step, heads=s.heads), args=(params, tokens))
