"""What the dialects share: sizes, the arithmetic that belongs to no module, and the training step around a loss."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from tests.zoo.case import cross_entropy, descend, integers

BATCH, LENGTH, WIDTH, HEADS, DEPTH, VOCABULARY = 4, 8, 32, 2, 2, 48
HIDDEN = 2 * WIDTH
RATE = 0.2
"""Of dropout."""


def attend(qkv: jax.Array) -> jax.Array:
    """Causal attention over fused projections of shape (..., length, 3 * width)."""
    parts = jnp.split(checkpoint_name(qkv, "qkv_proj"), 3, axis=-1)
    named = map(checkpoint_name, parts, ("query_proj", "key_proj", "value_proj"))
    q, k, v = (part.reshape(*part.shape[:-1], HEADS, -1) for part in named)
    logits = jnp.einsum("...qhd,...khd->...hqk", q, k) * q.shape[-1] ** -0.5
    logits = jnp.where(jnp.tril(jnp.ones(logits.shape[-2:], bool)), logits, -1e9)
    mixed = jnp.einsum("...hqk,...khd->...qhd", jax.nn.softmax(logits), v)
    return checkpoint_name(mixed.reshape(*qkv.shape[:-1], WIDTH), "context")


def gate(hidden: jax.Array) -> jax.Array:
    """The gated activation of a fused feed-forward product of shape (..., 2 * hidden)."""
    parts = jnp.split(checkpoint_name(hidden, "mlpwi"), 2, axis=-1)
    gated, linear = map(checkpoint_name, parts, ("mlpwi_0", "mlpwi_1"))
    return jax.nn.silu(gated) * linear


def tokens() -> jax.Array:
    return integers(np.random.default_rng(0), VOCABULARY, BATCH, LENGTH + 1)


def train_step(forward: Any) -> Any:
    """The step of `forward(params, statistics, tokens, key) -> (logits, statistics)`."""

    def step(state, tokens, key):
        def loss_fn(params):
            logits, statistics = forward(params, state["statistics"], tokens[:, :-1], key)
            return cross_entropy(logits, tokens[:, 1:]), statistics

        (loss, statistics), gradients = jax.value_and_grad(loss_fn, has_aux=True)(state["params"])
        updated = descend(state["params"], gradients)
        return {"params": updated, "statistics": statistics}, loss, gradients

    return step
