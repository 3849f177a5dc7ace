"""Learning to act and learning to learn: policy gradients, Q-learning, gradients through steps of training."""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.strangers.images import conv_block, conv_block_weights
from benchmarks.strangers.layers import (
    cross_entropy,
    dense,
    dense_weights,
    layer_norm,
    mlp,
    mlp_weights,
    norm_weights,
)
from benchmarks.strangers.training import Recipe, array, as_written, integers, training_step
from jaxckpt import Step


def policy_gradient(
    *, width: int = 512, layers: int = 6, steps: int = 256, environments: int = 256, actions: int = 18, size: int = 128,
    wrap: Any = as_written,
) -> Step:  # fmt: skip
    """Proximal policy optimisation (Schulman and others 2017): advantages by a reverse scan, a clipped ratio."""

    @wrap
    def block(weights: Any, x: jax.Array) -> jax.Array:
        return x + mlp(weights["mlp"], layer_norm(weights["norm"], x), jnp.tanh)

    def outputs(weights: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = dense(weights["entry"], x)
        for each in weights["layers"]:
            x = block(each, x)
        return jax.nn.log_softmax(dense(weights["policy"], x)), dense(weights["value"], x)[..., 0]

    def advantages(values: jax.Array, rewards: jax.Array) -> jax.Array:
        errors = rewards + 0.99 * jnp.roll(values, -1, 0) - values

        def body(carry: jax.Array, error: jax.Array) -> Any:
            carry = error + 0.95 * carry
            return carry, carry

        return jax.lax.scan(body, jnp.zeros_like(values[0]), errors, reverse=True)[1]

    def loss(weights: Any, x: jax.Array, taken: jax.Array, before: jax.Array, rewards: jax.Array) -> jax.Array:
        odds, values = outputs(weights, x)
        gains = jax.lax.stop_gradient(advantages(values, rewards))
        ratio = jnp.exp(jnp.take_along_axis(odds, taken[..., None], -1)[..., 0] - before)
        clipped = jnp.minimum(ratio * gains, jnp.clip(ratio, 0.8, 1.2) * gains)
        returns = jax.lax.stop_gradient(gains + values)
        entropy = -(jnp.exp(odds) * odds).sum(-1)
        return (0.5 * jnp.square(values - returns) - clipped - 0.01 * entropy).mean()

    layer = {"norm": norm_weights(width), "mlp": mlp_weights((width, 2 * width, width))}
    weights = {
        "entry": dense_weights(size, width),
        "layers": [layer] * layers,
        "policy": dense_weights(width, actions),
        "value": dense_weights(width, 1),
    }
    each = array(steps, environments)
    return training_step(loss, weights, array(*each.shape, size), integers(*each.shape), each, each)


def q_learning(
    *, width: int = 32, layers: int = 6, batch: int = 256, size: int = 42, actions: int = 18, wrap: Any = as_written
) -> Step:
    """Double Q-learning from frames (van Hasselt and others 2016): three passes, one of them with a gradient."""
    block = wrap(conv_block)

    def values(weights: Any, x: jax.Array) -> jax.Array:
        for each in weights["layers"]:
            x = block(each, x)
        return dense(weights["head"], x.mean((1, 2)))

    def loss(
        weights: Any, target: Any, now: jax.Array, after: jax.Array, taken: jax.Array, rewards: jax.Array
    ) -> jax.Array:
        best = values(weights, after).argmax(-1)
        later = jnp.take_along_axis(values(target, after), best[:, None], -1)[:, 0]
        wanted = jax.lax.stop_gradient(rewards + 0.99 * later)
        return jnp.mean(jnp.square(jnp.take_along_axis(values(weights, now), taken[:, None], -1)[:, 0] - wanted))

    weights = {
        "layers": [conv_block_weights(4, width)] + [conv_block_weights(width, width)] * (layers - 1),
        "head": dense_weights(width, actions),
    }
    frames = array(batch, size, size, 4)
    return training_step(loss, weights, weights, frames, frames, integers(batch), array(batch))


def meta_gradient(
    *, width: int = 256, layers: int = 4, tasks: int = 32, rows: int = 256, inner: int = 3, wrap: Any = as_written
) -> Step:
    """Model-agnostic meta-learning (Finn and others 2017): a gradient through steps of gradient descent, of tasks."""

    @wrap
    def block(weights: Any, x: jax.Array) -> jax.Array:
        return jax.nn.silu(dense(weights, x))

    def error(weights: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for each in weights:
            x = block(each, x)
        return jnp.mean(jnp.square(x - y))

    def adapted(weights: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for _ in range(inner):
            slopes = jax.grad(error)(weights, x[0], y[0])
            weights = jax.tree.map(lambda w, g: w - 0.01 * g, weights, slopes)
        return error(weights, x[1], y[1])

    def loss(weights: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.vmap(adapted, in_axes=(None, 0, 0))(weights, x, y).mean()

    data = array(tasks, 2, rows, width)
    return training_step(loss, [dense_weights(width, width)] * layers, data, data)


def learned_rates(
    *, width: int = 256, layers: int = 4, rows: int = 4096, inner: int = 16, classes: int = 10, wrap: Any = as_written
) -> Step:
    """Learning rates by the gradient through a scan over steps of training; the block is one step."""

    def error(weights: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        return cross_entropy(mlp(weights, x, jnp.tanh), labels)

    def update(rates: Any, weights: Any, x: jax.Array, labels: jax.Array) -> Any:
        value, slopes = jax.value_and_grad(error)(weights, x, labels)
        return jax.tree.map(lambda w, g, rate: w - jnp.exp(rate) * g, weights, slopes, rates), value

    block = wrap(update, in_loop=True)

    def loss(rates: Any, weights: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda weights, each: block(rates, weights, *each), weights, (x, labels))[1].mean()

    weights = mlp_weights((width,) * layers + (classes,))
    rates = jax.tree.map(lambda _: array(), weights)
    return training_step(loss, rates, weights, array(inner, rows, width), integers(inner, rows))


RECIPES = {
    "policy-gradient": Recipe(
        family="reinforcement learning",
        build=policy_gradient,
        small={"width": 8, "layers": 2, "steps": 4, "environments": 2, "actions": 3, "size": 4},
        choices={"width": (256, 512), "layers": (4, 6), "environments": (128, 256)},
    ),
    "q-learning": Recipe(
        family="reinforcement learning",
        build=q_learning,
        small={"width": 4, "layers": 2, "batch": 2, "size": 6, "actions": 3},
        choices={"width": (32, 64), "layers": (4, 6, 8), "batch": (256, 512)},
    ),
    "meta-gradient": Recipe(
        family="meta-gradient",
        build=meta_gradient,
        small={"width": 8, "layers": 2, "tasks": 2, "rows": 4, "inner": 2},
        choices={"width": (256, 512), "layers": (3, 4), "inner": (2, 3, 5), "rows": (256, 512)},
        draws=2,
    ),
    "learned-rates": Recipe(
        family="meta-gradient",
        build=learned_rates,
        small={"width": 8, "layers": 2, "rows": 4, "inner": 3, "classes": 3},
        choices={"width": (256, 512), "layers": (3, 5), "inner": (16, 32), "rows": (4096, 8192)},
    ),
}
