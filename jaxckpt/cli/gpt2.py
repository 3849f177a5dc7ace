"""The demo's step: GPT-2 small as its users would write it in Flax Linen, nothing in it made for jaxckpt.

Pre-norm blocks, naive attention with a float32 softmax, bfloat16 compute over float32 parameters, an untied head,
AdamW. The names are those of `jax.ad_checkpoint.checkpoint_name`, for JAX's own policies to save by.

Read after `demo`. Flax and optax are loaded here and nowhere else in the package.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.ad_checkpoint import checkpoint_name

SEQUENCE = 1024
WIDTH = 768
HEADS = 12
VOCABULARY = 50304


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a normalisation, each added to the stream."""

    width: int
    heads: int
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (batch, sequence, width) to the same shape."""
        x = x + self.dropped(self.attention(nn.LayerNorm(dtype=jnp.bfloat16)(x)))
        x = checkpoint_name(x, "resid_mid")
        y = nn.LayerNorm(dtype=jnp.bfloat16)(x)
        y = nn.Dense(4 * self.width, dtype=jnp.bfloat16, name="fc")(y)
        y = nn.gelu(checkpoint_name(y, "fc"))
        return x + self.dropped(nn.Dense(self.width, dtype=jnp.bfloat16, name="fc2")(y))

    def dropped(self, x: jax.Array) -> jax.Array:
        """Dropout; without it the array itself."""
        return nn.Dropout(self.dropout, deterministic=False)(x)

    def attention(self, y: jax.Array) -> jax.Array:
        """Causal self-attention."""
        batch, sequence, width = y.shape
        qkv = nn.Dense(3 * width, dtype=jnp.bfloat16, name="qkv")(y)
        split = jnp.split(checkpoint_name(qkv, "qkv"), 3, axis=-1)
        q, k, v = (t.reshape(batch, sequence, self.heads, width // self.heads) for t in split)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (width // self.heads) ** 0.5
        causal = jnp.tril(jnp.ones((sequence, sequence), bool))
        scores = jnp.where(causal, scores, -1e9).astype(jnp.float32)
        weights = self.dropped(jax.nn.softmax(scores, axis=-1).astype(jnp.bfloat16))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, sequence, width)
        return nn.Dense(width, dtype=jnp.bfloat16, name="proj")(checkpoint_name(mixed, "attn_out"))


class GPT(nn.Module):
    """A decoder; `block` may be a rematerialised one."""

    layers: int
    width: int = WIDTH
    heads: int = HEADS
    vocabulary: int = VOCABULARY
    sequence: int = SEQUENCE
    block: Any = Block

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Maps (batch, sequence) tokens to (batch, sequence, vocabulary) logits."""
        x = nn.Embed(self.vocabulary, self.width, dtype=jnp.bfloat16)(tokens)
        positions = self.param("pos", nn.initializers.normal(0.02), (self.sequence, self.width))
        x = x + positions.astype(jnp.bfloat16)[None, : tokens.shape[1]]
        for i in range(self.layers):
            x = self.block(self.width, self.heads, name=f"block_{i}")(x)
        x = nn.LayerNorm(dtype=jnp.bfloat16)(x)
        return nn.Dense(self.vocabulary, dtype=jnp.bfloat16, use_bias=False, name="head")(x)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """A step from (parameters, optimiser state, tokens) to (parameters, optimiser state, loss).

    Its arguments are descriptions; model and optimiser are there to make real ones with.
    """

    step: Callable[..., Any]
    args: tuple[Any, ...]
    donate_argnums: tuple[int, ...]
    model: GPT
    optimiser: optax.GradientTransformation


def training_step(*, layers: int = 12, batch: int = 8, block: Any = Block, **shape: Any) -> TrainingStep:
    """GPT-2 small, or another size of it."""
    model = GPT(layers=layers, block=block, **shape)
    optimiser = optax.adamw(1e-4)

    def loss(parameters: Any, tokens: jax.Array) -> jax.Array:
        logits: Any = model.apply(parameters, tokens[:, :-1])
        targets = tokens[:, 1:]
        return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), targets).mean()

    def step(parameters: Any, state: Any, tokens: jax.Array) -> tuple[Any, Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(parameters, tokens)
        updates, state = optimiser.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state, value

    tokens = jax.ShapeDtypeStruct((batch, model.sequence + 1), jnp.int32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    parameters = jax.eval_shape(model.init, key, jax.ShapeDtypeStruct((1, model.sequence), jnp.int32))
    state = jax.eval_shape(optimiser.init, parameters)
    return TrainingStep(
        step=step, args=(parameters, state, tokens), donate_argnums=(0, 1), model=model, optimiser=optimiser
    )
