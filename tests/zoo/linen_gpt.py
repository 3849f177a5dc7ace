"""A GPT in Flax Linen, as the guides write it: written-out blocks, scanned blocks, rematerialised blocks.

bf16 compute over f32 parameters, AdamW, a `TrainState` that is donated. The small twin of the model that the
project's figures are measured on.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState
from jax.ad_checkpoint import checkpoint_name

from tests.zoo.case import SIZES, Case, integers, quick_jit


class Attention(nn.Module):
    """Causal self-attention, softmax in f32."""

    heads: int
    dtype: Any = jnp.bfloat16

    @nn.compact
    def __call__(self, x):
        batch, length, width = x.shape
        qkv = checkpoint_name(nn.Dense(3 * width, dtype=self.dtype, name="qkv")(x), "qkv")
        q, k, v = jnp.split(qkv.reshape(batch, length, self.heads, -1), 3, axis=-1)
        logits = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (width // self.heads) ** 0.5
        causal = jnp.tril(jnp.ones((length, length), bool))
        weights = jax.nn.softmax(jnp.where(causal, logits.astype(jnp.float32), -1e9)).astype(self.dtype)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, length, width)
        return nn.Dense(width, dtype=self.dtype, name="out")(checkpoint_name(mixed, "attn_out"))


class Block(nn.Module):
    """Attention and a feed-forward layer of four times the width, each behind a norm and beside a residual."""

    heads: int
    dtype: Any = jnp.bfloat16

    @nn.compact
    def __call__(self, x):
        width = x.shape[-1]
        x = x + Attention(self.heads, self.dtype, name="attn")(nn.LayerNorm(dtype=self.dtype)(x))
        hidden = nn.Dense(4 * width, dtype=self.dtype, name="fc")(nn.LayerNorm(dtype=self.dtype)(x))
        hidden = nn.gelu(checkpoint_name(hidden, "fc"))
        return x + nn.Dense(width, dtype=self.dtype, name="proj")(hidden)


def written_out(block: type[Block], x, heads: int, depth: int):
    """The blocks one after the other."""
    for i in range(depth):
        x = block(heads, name=f"block_{i}")(x)
    return x


def scanned(block: type[Block], x, heads: int, depth: int):
    """The blocks as one loop over stacked parameters."""
    layers = nn.scan(
        lambda layer, carry, _: (layer(carry), None),
        variable_axes={"params": 0},
        split_rngs={"params": True},
        length=depth,
    )
    return layers(block(heads, name="blocks"), x, None)[0]


class GPT(nn.Module):
    """A decoder-only transformer; `layers` strings the blocks together, `block` may be wrapped in `nn.remat`."""

    vocabulary: int
    width: int
    heads: int
    depth: int
    block: type[Block] = Block
    layers: Callable[..., Any] = written_out
    dtype: Any = jnp.bfloat16

    @nn.compact
    def __call__(self, tokens):
        position = self.param("position", nn.initializers.normal(0.02), (tokens.shape[1], self.width))
        x = nn.Embed(self.vocabulary, self.width, dtype=self.dtype, name="embed")(tokens)
        x = self.layers(self.block, x + position.astype(self.dtype), self.heads, self.depth)
        x = nn.LayerNorm(dtype=self.dtype, name="norm")(x)
        return nn.Dense(self.vocabulary, use_bias=False, dtype=self.dtype, name="head")(x)


def train_step(state: TrainState, tokens):
    """Next-token prediction and one AdamW update."""

    def loss_fn(params):
        logits = state.apply_fn(params, tokens[:, :-1]).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def case(size: str, **options) -> Case:
    s = SIZES[size]
    model = GPT(vocabulary=s.vocabulary, width=s.width, heads=s.heads, depth=s.depth, **options)
    tokens = integers(np.random.default_rng(0), s.vocabulary, s.batch, s.length + 1)

    @quick_jit
    def init(key):
        params = model.init(key, tokens[:, :-1])
        return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(1e-3))

    return Case(step=train_step, args=(init(jax.random.key(0)), tokens), donate_argnums=(0,))


def gpt(size: str = "tiny") -> Case:
    return case(size)


def gpt_scan(size: str = "tiny") -> Case:
    return case(size, layers=scanned)


def gpt_remat(size: str = "tiny") -> Case:
    policy = jax.checkpoint_policies.save_only_these_names("qkv", "attn_out")
    return case(size, block=nn.remat(Block, policy=policy))


def gpt_scan_remat(size: str = "tiny") -> Case:
    return case(size, layers=scanned, block=nn.remat(Block, prevent_cse=False))
