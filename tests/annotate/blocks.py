"""One transformer block with dropout in four dialects, each with and without scopes.

`DIALECTS[name](wrap)` gives `(loss, parameters)`, where `wrap` is put on the class or function of the block and `loss`
takes the parameters and an input, draws the same dropout every time, and runs two blocks.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

import jaxckpt

WIDTH, HEADS = 8, 2
X = jnp.sin(jnp.arange(2 * 6 * WIDTH, dtype=jnp.float32)).reshape(2, 6, WIDTH)
Wrap = Callable[[Any], Any]


def attend(q: Any, k: Any, v: Any) -> Any:
    """Attention over heads, its weights and its result named."""
    q, k, v = (part.reshape(*part.shape[:-1], HEADS, -1) for part in (q, k, v))
    scores = jaxckpt.name(jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k)), "scores")
    return jaxckpt.name(jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(*q.shape[:2], -1), "attn_out")


class LinenBlock(nn.Module):
    """Auto-named parameters, dropout, a keyword that is no array."""

    @nn.compact
    def __call__(self, x: Any, mask: Any = None, *, deterministic: bool = False) -> Any:
        q, k, v = jnp.split(jaxckpt.name(nn.Dense(3 * WIDTH)(nn.LayerNorm()(x)), "qkv"), 3, axis=-1)
        x = x + nn.Dropout(0.5)(attend(q, k, v), deterministic=deterministic)
        return x + nn.Dense(WIDTH)(jaxckpt.name(jnp.tanh(nn.Dense(16)(x)), "hidden"))


def linen(wrap: Wrap) -> tuple[Any, Any]:
    """Flax Linen."""
    scoped = wrap(LinenBlock)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any, *, deterministic: bool = False) -> Any:
            for _ in range(2):
                x = scoped()(x, None, deterministic=deterministic)
            return x

    model = Model()
    parameters = model.init(jax.random.key(0), X, deterministic=True)

    def loss(parameters: Any, x: Any) -> Any:
        return (model.apply(parameters, x, rngs={"dropout": jax.random.key(1)}) ** 2).mean()

    return loss, parameters


class NnxBlock(nnx.Module):
    """The same as an NNX module."""

    def __init__(self, rngs: nnx.Rngs):
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.qkv = nnx.Linear(WIDTH, 3 * WIDTH, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 16, rngs=rngs)
        self.down = nnx.Linear(16, WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any, mask: Any = None, *, deterministic: bool = False) -> Any:
        q, k, v = jnp.split(jaxckpt.name(self.qkv(self.norm(x)), "qkv"), 3, axis=-1)
        x = x + self.dropout(attend(q, k, v), deterministic=deterministic)
        return x + self.down(jaxckpt.name(jnp.tanh(self.up(x)), "hidden"))


def nnx_dialect(wrap: Wrap) -> tuple[Any, Any]:
    """Flax NNX."""
    scoped = wrap(NnxBlock)

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.blocks = nnx.List([scoped(rngs) for _ in range(2)])

        def __call__(self, x: Any) -> Any:
            for block in self.blocks:
                x = block(x, None, deterministic=False)
            return x

    graph, parameters, rest = nnx.split(Model(nnx.Rngs(0)), nnx.Param, ...)

    def loss(parameters: Any, x: Any) -> Any:
        model = nnx.merge(graph, parameters, rest, copy=True)
        return (model(x) ** 2).mean()

    return loss, parameters


class EquinoxBlock(eqx.Module):
    """The same as an Equinox module."""

    norm: eqx.nn.LayerNorm
    qkv: eqx.nn.Linear
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __init__(self, key: Any):
        keys = jax.random.split(key, 3)
        self.norm = eqx.nn.LayerNorm(WIDTH)
        self.qkv = eqx.nn.Linear(WIDTH, 3 * WIDTH, key=keys[0])
        self.up = eqx.nn.Linear(WIDTH, 16, key=keys[1])
        self.down = eqx.nn.Linear(16, WIDTH, key=keys[2])
        self.dropout = eqx.nn.Dropout(0.5)

    def __call__(self, x: Any, mask: Any = None, *, key: Any = None) -> Any:
        each = lambda layer: jax.vmap(jax.vmap(layer))  # noqa: E731  # two batch dimensions
        q, k, v = jnp.split(jaxckpt.name(each(self.qkv)(each(self.norm)(x)), "qkv"), 3, axis=-1)
        x = x + self.dropout(attend(q, k, v), key=key)
        return x + each(self.down)(jaxckpt.name(jnp.tanh(each(self.up)(x)), "hidden"))


def equinox(wrap: Wrap) -> tuple[Any, Any]:
    """Equinox."""
    scoped = wrap(EquinoxBlock)
    blocks = [scoped(key) for key in jax.random.split(jax.random.key(0), 2)]
    parameters, static = eqx.partition(blocks, eqx.is_array)

    def loss(parameters: Any, x: Any) -> Any:
        for index, block in enumerate(eqx.combine(parameters, static)):
            x = block(x, None, key=jax.random.key(index))
        return (x**2).mean()

    return loss, parameters


def plain_block(weights: Any, x: Any, mask: Any, key: Any) -> Any:
    """The same as a function."""
    normed = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)
    q, k, v = jnp.split(jaxckpt.name(normed @ weights["qkv"], "qkv"), 3, axis=-1)
    kept = jax.random.bernoulli(key, 0.5, x.shape)
    x = x + jnp.where(kept, attend(q, k, v) * 2, 0.0)
    return x + jaxckpt.name(jnp.tanh(x @ weights["up"]), "hidden") @ weights["down"]


def plain(wrap: Wrap) -> tuple[Any, Any]:
    """JAX alone."""
    scoped = wrap(plain_block)
    shapes = {"qkv": (WIDTH, 3 * WIDTH), "up": (WIDTH, 16), "down": (16, WIDTH)}
    parameters = [
        {name: jax.random.normal(jax.random.key(i), shape) / 3 for name, shape in shapes.items()} for i in range(2)
    ]

    def loss(parameters: Any, x: Any) -> Any:
        for index, weights in enumerate(parameters):
            x = scoped(weights, x, None, jax.random.key(index))
        return (x**2).mean()

    return loss, parameters


DIALECTS = {"plain": plain, "linen": linen, "nnx": nnx_dialect, "equinox": equinox}
