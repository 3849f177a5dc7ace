"""Recurrent networks in plain JAX: an LSTM over time by `lax.scan`, and a state-space layer by `associative_scan`."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.zoo.case import SIZES, Case, cross_entropy, descend, integers, normal, weight


def lstm_cell(p, state, x):
    h, c = state
    i, f, g, o = jnp.split(jnp.concatenate([x, h], axis=-1) @ p["w"] + p["b"], 4, axis=-1)
    c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h


def lstm_logits(params, tokens):
    x = params["embed"][tokens]
    zeros = jnp.zeros((x.shape[0], x.shape[-1]))
    for p in params["layers"]:
        _, hidden = jax.lax.scan(lambda state, x, p=p: lstm_cell(p, state, x), (zeros, zeros), x.swapaxes(0, 1))
        x = hidden.swapaxes(0, 1)
    return x @ params["head"]


def lstm_step(params, tokens):
    loss, grads = jax.value_and_grad(lambda p: cross_entropy(lstm_logits(p, tokens[:, :-1]), tokens[:, 1:]))(params)
    return descend(params, grads), loss


def lstm(size: str = "tiny") -> Case:
    s = SIZES[size]
    draw = np.random.default_rng(0)
    params = {
        "embed": weight(draw, s.vocabulary, s.width),
        "layers": [{"w": weight(draw, 2 * s.width, 4 * s.width), "b": jnp.zeros(4 * s.width)} for _ in range(2)],
        "head": weight(draw, s.width, s.vocabulary),
    }
    tokens = integers(draw, s.vocabulary, s.batch, s.length + 1)
    return Case(step=lstm_step, args=(params, tokens), donate_argnums=(0,))


def linear_recurrence(decay, x):
    """`h[t] = decay[t] * h[t-1] + x[t]` over the second axis, in logarithmic depth."""

    def combine(one, other):
        return one[0] * other[0], one[1] * other[0] + other[1]

    return jax.lax.associative_scan(combine, (decay, x), axis=1)[1]


def state_space_layer(p, x):
    gate = jax.nn.sigmoid(x @ p["gate"])
    return x + (linear_recurrence(gate, (1 - gate) * (x @ p["in"])) * jax.nn.silu(x @ p["skip"])) @ p["out"]


def state_space_step(params, x, y):
    def loss_fn(params):
        out = x
        for p in params:
            out = state_space_layer(p, out)
        return jnp.mean((out - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return descend(params, grads), loss


def state_space(size: str = "tiny") -> Case:
    s = SIZES[size]
    draw = np.random.default_rng(0)
    params = [{name: weight(draw, s.width, s.width) for name in ("gate", "in", "skip", "out")} for _ in range(s.depth)]
    x = normal(draw, s.batch, s.length, s.width)
    return Case(step=state_space_step, args=(params, x, jnp.roll(x, 1, axis=1)), donate_argnums=(0,))
