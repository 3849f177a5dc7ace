"""Randomness in the step: dropout drawn in the forward pass, and key arrays that live in the state.

What is drawn must be drawn once, or drawn again identically.
"""

import jax
import jax.numpy as jnp

from tests.zoo import mlp
from tests.zoo.case import Case, descend


def dropout(key, x, *, rate: float):
    keep = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0.0)


def forward(params, x, key):
    for i, p in enumerate(params[:-1]):
        x = dropout(jax.random.fold_in(key, i), jnp.tanh(x @ p["w"] + p["b"]), rate=0.2)
    return mlp.forward(params[-1:], x)


def random_forward_step(params, x, y, key):
    loss, grads = jax.value_and_grad(lambda p: jnp.mean((forward(p, x, key) - y) ** 2))(params)
    return descend(params, grads), loss


def random_forward(size: str = "tiny") -> Case:
    return Case(step=random_forward_step, args=(*mlp.build(size), jax.random.key(1)), donate_argnums=(0,))


def scanned_forward(stacked, x, keys):
    """One key for each turn of the loop: an array of keys is scanned over."""

    def layer(x, p_key):
        p, key = p_key
        return dropout(key, jnp.tanh(x @ p["w"] + p["b"]), rate=0.2), None

    return jax.lax.scan(layer, x, (stacked, keys))[0]


def keys_in_state_step(state, x, y):
    """A chain of keys that is carried on, and an array of them, one for each layer, that is split anew."""
    key, noise_key = jax.random.split(state["key"])

    def loss_fn(params):
        noisy = x + 0.1 * jax.random.normal(noise_key, x.shape)
        hidden = scanned_forward(params["layers"], noisy @ params["stem"], state["layer_keys"])
        return jnp.mean((hidden @ params["head"] - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(state["params"])
    layer_keys = jax.vmap(lambda k: jax.random.fold_in(k, 1))(state["layer_keys"])
    return {"params": descend(state["params"], grads), "key": key, "layer_keys": layer_keys}, loss


def keys_in_state(size: str = "tiny") -> Case:
    params, x, y = mlp.build(size)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params[1:-1])
    state = {
        "params": {"stem": params[0]["w"], "layers": stacked, "head": params[-1]["w"]},
        "key": jax.random.key(0),
        "layer_keys": jax.random.split(jax.random.key(1), len(params) - 2),
    }
    return Case(step=keys_in_state_step, args=(state, x, y), donate_argnums=(0,))
