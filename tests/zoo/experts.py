"""A mixture of experts: top-k routing, tokens scattered into buffers of fixed capacity and gathered back.

Integer indices are residuals here, and which token goes where must be the same when it is computed again.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from tests.zoo.case import SIZES, Case, descend, normal, weight

EXPERTS = 4


def route(logits, *, top: int, capacity: int):
    """For every choice [tokens * top] its expert, its place in that expert's buffer, its weight (0 without place)."""
    gates, chosen = jax.lax.top_k(jax.nn.softmax(logits), top)
    experts = chosen.reshape(-1)
    places = jnp.cumsum(jax.nn.one_hot(experts, EXPERTS, dtype=jnp.int32), axis=0)
    place = jnp.take_along_axis(places, experts[:, None], axis=1)[:, 0] - 1
    return experts, place, jnp.where(place < capacity, gates.reshape(-1), 0.0)


def expert_layer(p, x, *, top: int = 2):
    """The sum of the chosen experts over tokens [tokens, width], and how unevenly they were chosen."""
    capacity = 2 * top * len(x) // EXPERTS
    logits = x @ p["router"]
    experts, place, gates = route(logits, top=top, capacity=capacity)
    tokens = jnp.repeat(jnp.arange(len(x)), top)
    buffers = jnp.zeros((EXPERTS, capacity, x.shape[-1])).at[experts, place].add(x[tokens], mode="drop")
    hidden = jax.nn.gelu(jnp.einsum("ecd,edh->ech", buffers, p["up"]))
    out = jnp.einsum("ech,ehd->ecd", hidden, p["down"])[experts, place]
    balance = jnp.mean(jax.nn.softmax(logits).mean(0) ** 2)
    return x + jnp.zeros_like(x).at[tokens].add(gates[:, None] * out), balance


def train_step(params, x, y):
    def loss_fn(params):
        out, balances = x, []
        for p in params:
            out, balance = expert_layer(p, out)
            balances.append(balance)
        return jnp.mean((out - y) ** 2) + 0.01 * sum(balances), balances

    (loss, balances), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    return descend(params, grads), loss, balances


def mixture(size: str = "tiny") -> Case:
    s = SIZES[size]
    draw = np.random.default_rng(0)
    stacked = partial(lambda *shape: jnp.stack([weight(draw, *shape) for _ in range(EXPERTS)]))
    params = [
        {
            "router": weight(draw, s.width, EXPERTS),
            "up": stacked(s.width, 2 * s.width),
            "down": stacked(2 * s.width, s.width),
        }
        for _ in range(2)
    ]
    rows = s.batch * s.length
    args = (params, normal(draw, rows, s.width), normal(draw, rows, s.width))
    return Case(step=train_step, args=args, donate_argnums=(0,))
