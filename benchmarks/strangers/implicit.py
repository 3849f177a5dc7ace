"""Layers that are solutions: equilibria, differential equations by Runge and Kutta and by an adaptive solver."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.ode import odeint

from benchmarks.strangers.layers import dense, dense_weights, layer_norm, mean_square, mlp, mlp_weights, norm_weights
from benchmarks.strangers.training import Recipe, array, as_written, training_step
from jaxckpt import Step


def equilibrium(
    *, width: int = 1024, rows: int = 16384, iterations: int = 24, last: int = 6, dtype: str = "float32",
    wrap: Any = as_written,
) -> Step:  # fmt: skip
    """A fixed point by iterations without a gradient, and some with one (Bai and others 2019, Geng and others 2021)."""

    @wrap
    def block(weights: Any, state: jax.Array, x: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(dense(weights["state"], state) + dense(weights["x"], x))
        return layer_norm(weights["norm"], state + dense(weights["out"], hidden))

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        fixed = jax.lax.stop_gradient(weights)
        state = jax.lax.fori_loop(0, iterations, lambda _, state: block(fixed, state, x), jnp.zeros_like(x))
        state = jax.lax.stop_gradient(state)
        for _ in range(last):
            state = block(weights, state, x)
        return mean_square(state)

    weights = {name: dense_weights(width, width, dtype) for name in ("state", "x", "out")}
    return training_step(loss, weights | {"norm": norm_weights(width, dtype)}, array(rows, width, dtype=dtype))


def runge_kutta(
    *, width: int = 512, rows: int = 8192, steps: int = 16, dtype: str = "float32", wrap: Any = as_written
) -> Step:
    """A differential equation by sixteen steps of Runge and Kutta, in a scan; the block is one step."""

    def slope(weights: Any, x: jax.Array) -> jax.Array:
        return mlp(weights, x, jnp.tanh)

    @partial(wrap, in_loop=True)
    def step(weights: Any, x: jax.Array) -> jax.Array:
        length = 1 / steps
        first = slope(weights, x)
        second = slope(weights, x + length / 2 * first)
        third = slope(weights, x + length / 2 * second)
        fourth = slope(weights, x + length * third)
        return x + length / 6 * (first + 2 * second + 2 * third + fourth)

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        return mean_square(jax.lax.scan(lambda x, _: (step(weights, x), None), x, length=steps)[0])

    return training_step(loss, mlp_weights((width, 2 * width, width), dtype), array(rows, width, dtype=dtype))


def adaptive_equation(
    *, width: int = 512, rows: int = 8192, layers: int = 4, times: int = 4, wrap: Any = as_written
) -> Step:
    """An adaptive solver, whose gradient is another solution (Chen and others 2018), between residual blocks."""

    @wrap
    def block(weights: Any, x: jax.Array) -> jax.Array:
        return x + mlp(weights, x, jax.nn.gelu)

    def loss(weights: Any, x: jax.Array, times: jax.Array) -> jax.Array:
        for each in weights["before"]:
            x = block(each, x)
        x = odeint(lambda x, _, w: mlp(w, x, jnp.tanh), x, times, weights["slope"], rtol=1e-3, atol=1e-3)[-1]
        for each in weights["after"]:
            x = block(each, x)
        return mean_square(x)

    layer = mlp_weights((width, 4 * width, width))
    weights = {"before": [layer] * layers, "slope": mlp_weights((width, width, width)), "after": [layer] * layers}
    return training_step(loss, weights, array(rows, width), array(times))


RECIPES = {
    "equilibrium": Recipe(
        family="implicit layer",
        build=equilibrium,
        small={"width": 8, "rows": 4, "iterations": 3, "last": 2},
        choices={"width": (512, 1024), "rows": (32768, 65536), "last": (4, 8), "dtype": ("float32", "bfloat16")},
        draws=2,
    ),
    "runge-kutta": Recipe(
        family="implicit layer",
        build=runge_kutta,
        small={"width": 8, "rows": 4, "steps": 2},
        choices={"width": (256, 512), "rows": (8192, 16384), "steps": (8, 16)},
        draws=2,
    ),
    "adaptive-equation": Recipe(
        family="implicit layer",
        build=adaptive_equation,
        small={"width": 8, "rows": 4, "layers": 1, "times": 2},
        choices={"width": (256, 512), "rows": (8192, 16384), "layers": (2, 4)},
    ),
}
