"""Random training steps as data: a program prints, shrinks and compares; `build` makes the step.

A program is a list of layers over tensors of one shape, (4, 8) by default. Each layer names what it does and which of
the earlier tensors it reads, so that residual connections, shared weights and dead ends come up by themselves.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from hypothesis import strategies as st

ROWS, WIDTH = 4, 8
WEIGHTS = 3


@dataclass(frozen=True)
class Layer:
    """One layer: what it does, the tensors that it reads (counted back from the newest), the weight that it uses."""

    kind: str
    first: int = 0
    second: int = 0
    weight: int = 0


@dataclass(frozen=True)
class Program:
    """A training step: its layers, how it is updated, and what is donated."""

    layers: tuple[Layer, ...]
    update: str = "sgd"
    donate: bool = False
    aux: bool = False


@dataclass(frozen=True)
class Case:
    """A step with concrete arguments."""

    step: Callable[..., Any]
    args: tuple[Any, ...]
    donate_argnums: tuple[int, ...] = ()
    static_argnums: tuple[int, ...] = ()


@jax.custom_vjp
def halved_gradient(x):
    return jnp.sin(x)


halved_gradient.defvjp(lambda x: (jnp.sin(x), jnp.cos(x)), lambda cosine, g: (0.5 * g * cosine,))


@jax.custom_jvp
def soft_clip(x):
    return x / (1 + jnp.abs(x))


@soft_clip.defjvp
def _soft_clip_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return soft_clip(x), t / (1 + jnp.abs(x)) ** 2


def _scanned(x, w):
    return jax.lax.scan(lambda carry, _: (jnp.tanh(carry @ w), None), x, None, length=3)[0]


def _branch(x, w):
    return jax.lax.cond(x[0, 0] > 0, lambda x: jnp.tanh(x @ w), jnp.sin, x)


def _convolved(x, w):
    image = x.reshape(1, 1, *x.shape)
    kernel = w[:3, :3].reshape(1, 1, 3, 3)
    return jnp.tanh(jax.lax.conv(image, kernel, (1, 1), "SAME")).reshape(x.shape)


def _embedded(x, w):
    return w[jax.lax.stop_gradient(jnp.abs(x[:, 0]) * 7).astype(jnp.int32) % x.shape[1]]


def _attention(x, y):
    scores = jax.nn.softmax(x @ y.T / x.shape[1] ** 0.5, axis=-1)
    return scores @ y


def _normalised(x, _):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-3)


BINARY = {
    "add": lambda x, y: 0.5 * (x + y),
    "mul": lambda x, y: jnp.tanh(x) * jnp.tanh(y),
    "attention": _attention,
    "select": lambda x, y: jnp.where(x > 0, x, y),
    "concatenate": lambda x, y: jnp.concatenate([x[:, : x.shape[1] // 2], y[:, x.shape[1] // 2 :]], axis=1),
}
WEIGHTED = {
    "dense": lambda x, w: x @ w,
    "dense_tanh": lambda x, w: jnp.tanh(x @ w),
    "nested_jit": lambda x, w: jax.jit(lambda a, b: jnp.sin(a @ b))(x, w),
    "rematerialised": lambda x, w: jax.checkpoint(lambda a, b: jnp.tanh(jnp.sin(a @ b) @ b))(x, w),
    "rematerialised_dots": lambda x, w: jax.checkpoint(
        lambda a, b: jnp.tanh(a @ b), policy=jax.checkpoint_policies.dots_saveable
    )(x, w),
    "scan": _scanned,
    "branch": _branch,
    "conv": _convolved,
    "embedding": _embedded,
}
UNARY = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "softmax": functools.partial(jax.nn.softmax, axis=-1),
    "custom_vjp": halved_gradient,
    "custom_jvp": soft_clip,
    "transpose": lambda x: jnp.flip(x.T.reshape(x.shape), 1),
    "cumsum": lambda x: jnp.tanh(jnp.cumsum(x, axis=1)),
    "sort": lambda x: jnp.sort(x, axis=1),
    "stop_gradient": jax.lax.stop_gradient,
    "half": lambda x: jnp.tanh(x.astype(jnp.bfloat16)).astype(jnp.float32),
    "slice": lambda x: jnp.pad(x[:, 1:-1], ((0, 0), (1, 1))),
}
KINDS = (*BINARY, *WEIGHTED, *UNARY, "norm", "dropout")

programs = st.builds(
    Program,
    layers=st.lists(
        st.builds(
            Layer,
            kind=st.sampled_from(KINDS),
            first=st.integers(0, 3),
            second=st.integers(0, 5),
            weight=st.integers(0, WEIGHTS - 1),
        ),
        min_size=1,
        max_size=12,
    ).map(tuple),
    update=st.sampled_from(["none", "sgd", "momentum", "clipped"]),
    donate=st.booleans(),
    aux=st.booleans(),
)


def build(program: Program, *, rows: int = ROWS, width: int = WIDTH) -> Case:
    """The step of a program, with concrete arguments: (weights, momentum), x, key."""
    keys = jax.random.split(jax.random.key(0), WEIGHTS + 1)
    weights = [jax.random.normal(k, (width, width)) * width**-0.5 for k in keys[1:]]
    state = (weights, [jnp.zeros_like(w) for w in weights])
    x = jax.random.normal(keys[0], (rows, width))
    return Case(
        step=functools.partial(_step, program),
        args=(state, x, jax.random.key(1)),
        donate_argnums=(0,) if program.donate else (),
    )


def _step(program: Program, state, x, key):
    weights, momentum = state

    def loss(weights):
        out = _forward(program, weights, x, key)
        value = jnp.mean(out[-1] ** 2) + 0.1 * jnp.mean(out[len(out) // 2])
        return (value, out[-1]) if program.aux else (value, None)

    (value, aux), gradients = jax.value_and_grad(loss, has_aux=True)(weights)
    return (*_updated(program, weights, momentum, gradients), value, aux)


def _forward(program: Program, weights, x, key):
    tensors = [x]
    for i, layer in enumerate(program.layers):
        first = tensors[-1 - layer.first % len(tensors)]
        second = tensors[-1 - layer.second % len(tensors)]
        weight = weights[layer.weight]
        if layer.kind in BINARY:
            tensors.append(BINARY[layer.kind](first, second))
        elif layer.kind in WEIGHTED:
            tensors.append(WEIGHTED[layer.kind](first, weight))
        elif layer.kind in UNARY:
            tensors.append(UNARY[layer.kind](first))
        elif layer.kind == "norm":
            tensors.append(_normalised(first, weight))
        else:
            keep = jax.random.bernoulli(jax.random.fold_in(key, i), 0.8, first.shape)
            tensors.append(jnp.where(keep, first / 0.8, 0.0))
    # Every weight is read, so that every program has a gradient.
    tensors.append(jnp.tanh(tensors[-1] @ weights[0]) + sum(jnp.mean(w) for w in weights))
    return tensors


def _updated(program: Program, weights, momentum, gradients):
    if program.update == "none":
        return gradients, momentum
    if program.update == "clipped":
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in gradients))
        gradients = [g / jnp.maximum(norm, 1.0) for g in gradients]
    if program.update == "momentum":
        momentum = [0.9 * m + g for m, g in zip(momentum, gradients, strict=True)]
        gradients = momentum
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], momentum
