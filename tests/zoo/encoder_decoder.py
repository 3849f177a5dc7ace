"""An encoder-decoder: every block of the decoder reads the encoder's output, which stays alive through all of them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from tests.zoo.case import SIZES, Case, cross_entropy, descend, integers, weight
from tests.zoo.plain_transformer import attention, attention_params, block, block_params, layer_norm


def decoder_block(p, x, memory, *, heads: int):
    x = x + attention(p["cross"], layer_norm(x, p["norm_cross"]), memory, heads=heads, causal=False)
    return block(p, x, heads=heads)


def logits_of(params, source, target, *, heads: int):
    memory = params["source_embed"][source]
    for p in params["encoder"]:
        memory = block(p, memory, heads=heads, causal=False)
    x = params["target_embed"][target]
    for p in params["decoder"]:
        x = decoder_block(p, x, memory, heads=heads)
    return x @ params["head"]


def train_step(params, source, target, *, heads: int):
    def loss_fn(params):
        return cross_entropy(logits_of(params, source, target[:, :-1], heads=heads), target[:, 1:])

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return descend(params, grads), loss


def decoder_block_params(draw, width: int):
    return block_params(draw, width) | {"cross": attention_params(draw, width), "norm_cross": jnp.ones(width)}


def translator(size: str = "tiny") -> Case:
    s = SIZES[size]
    draw = np.random.default_rng(0)
    params = {
        "source_embed": weight(draw, s.vocabulary, s.width),
        "target_embed": weight(draw, s.vocabulary, s.width),
        "encoder": [block_params(draw, s.width) for _ in range(s.depth // 2)],
        "decoder": [decoder_block_params(draw, s.width) for _ in range(s.depth // 2)],
        "head": weight(draw, s.width, s.vocabulary),
    }
    source = integers(draw, s.vocabulary, s.batch, 2 * s.length)
    target = integers(draw, s.vocabulary, s.batch, s.length + 1)
    return Case(step=partial(train_step, heads=s.heads), args=(params, source, target), donate_argnums=(0,))
