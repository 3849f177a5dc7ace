"""What the transformers here are made of: layers that compute in bfloat16 over float32 parameters, and attention."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

Dense = partial(nn.Dense, dtype=jnp.bfloat16)
Dropout = partial(nn.Dropout, deterministic=False)
Embed = partial(nn.Embed, dtype=jnp.bfloat16)
LayerNorm = partial(nn.LayerNorm, dtype=jnp.bfloat16)
RMSNorm = partial(nn.RMSNorm, dtype=jnp.bfloat16)


def split_heads(x: jax.Array, heads: int) -> jax.Array:
    """Maps (..., sequence, width) to (..., sequence, heads, width / heads)."""
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)


def join_heads(x: jax.Array) -> jax.Array:
    """Maps (..., sequence, heads, width of a head) to (..., sequence, width)."""
    return x.reshape(*x.shape[:-2], -1)


def attend(
    q: jax.Array, k: jax.Array, v: jax.Array, *, bias: jax.Array | None = None, scale: float | None = None
) -> jax.Array:
    """Attention with a float32 softmax, as it is written where no fused kernel is at hand.

    Args:
      q: (..., queries, heads, width of a head).
      k: (..., keys, heads, width of a head).
      v: As `k`.
      bias: Added to the (..., heads, queries, keys) scores, broadcast to them.
      scale: Factor of the scores; by default one over the root of a head's width.
    """
    scores = jnp.einsum("...qhd,...khd->...hqk", q, k).astype(jnp.float32)
    scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    weights = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
    return jnp.einsum("...hqk,...khd->...qhd", weights, v)
