"""Attention with gradients of its own, as flash kernels have them: the residuals are the output and one number a row.

Keys are walked block by block under a running maximum and sum (Dao et al. 2022, algorithm 1); the backward pass makes
the probabilities again from the saved log-sum-exp. A name on the output inside the forward rule is seen by policies,
one in the primal body is not.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from tests.zoo.case import SIZES, Case, descend, normal, weight


def forward_blocks(q, k, v, block: int):
    """Output [..., queries, d] and log-sum-exp [..., queries]."""

    def visit(carry, key_value):
        highest, total, out = carry
        key, value = key_value
        logits = jnp.einsum("...qd,...kd->...qk", q, key) * q.shape[-1] ** -0.5
        higher = jnp.maximum(highest, logits.max(-1))
        scale, weights = jnp.exp(highest - higher), jnp.exp(logits - higher[..., None])
        out = out * scale[..., None] + jnp.einsum("...qk,...kd->...qd", weights, value)
        return (higher, total * scale + weights.sum(-1), out), None

    def blocks(x):
        return jnp.moveaxis(x.reshape(*x.shape[:-2], -1, block, x.shape[-1]), -3, 0)

    rows = q.shape[:-1]
    start = (jnp.full(rows, -jnp.inf), jnp.zeros(rows), jnp.zeros_like(q))
    (highest, total, out), _ = jax.lax.scan(visit, start, (blocks(k), blocks(v)))
    return out / total[..., None], highest + jnp.log(total)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def flash_attention(q, k, v, block):
    """Attention over all keys; q, k, v are [..., length, d]."""
    return forward_blocks(q, k, v, block)[0]


def flash_forward(q, k, v, block):
    out, lse = forward_blocks(q, k, v, block)
    out, lse = checkpoint_name(out, "flash_out"), checkpoint_name(lse, "flash_lse")
    return out, (q, k, v, out, lse)


def flash_backward(block, residuals, g):
    q, k, v, out, lse = residuals
    scale = q.shape[-1] ** -0.5
    weights = jnp.exp(jnp.einsum("...qd,...kd->...qk", q, k) * scale - lse[..., None])
    d_weights = jnp.einsum("...qd,...kd->...qk", g, v)
    d_logits = weights * (d_weights - jnp.sum(g * out, axis=-1, keepdims=True)) * scale
    return (
        jnp.einsum("...qk,...kd->...qd", d_logits, k),
        jnp.einsum("...qk,...qd->...kd", d_logits, q),
        jnp.einsum("...qk,...qd->...kd", weights, g),
    )


flash_attention.defvjp(flash_forward, flash_backward)


def layer(p, x, *, block: int):
    q, k, v = (x @ p[name] for name in ("q", "k", "v"))
    return x + jnp.tanh(flash_attention(q, k, v, block) @ p["out"])


def train_step(params, x, y):
    def loss_fn(params):
        out = x
        for p in params:
            out = layer(p, out, block=x.shape[1] // 4)
        return jnp.mean((out - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return descend(params, grads), loss


def flash(size: str = "tiny") -> Case:
    s = SIZES[size]
    draw = np.random.default_rng(0)
    params = [{name: weight(draw, s.width, s.width) for name in ("q", "k", "v", "out")} for _ in range(s.depth)]
    x = normal(draw, s.batch, s.length, s.width)
    return Case(step=train_step, args=(params, x, jnp.roll(x, 1, axis=1)), donate_argnums=(0,))
