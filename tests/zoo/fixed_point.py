"""A layer that is the fixed point of another (a deep equilibrium model): `while_loop`s forward and backward.

`while_loop` has no reverse mode; the gradient is the implicit function theorem's, itself found by iteration.
"""

import jax
import jax.numpy as jnp
import numpy as np

from tests.zoo.case import SIZES, Case, descend, normal, weight


def iterate(f, start, *, most: int = 50, tolerance: float = 1e-6):
    """Applies `f` until it moves nothing by more than `tolerance`."""

    def goes_on(state):
        count, before, now = state
        return (count < most) & (jnp.abs(now - before).max() > tolerance)

    def turn(state):
        count, _, now = state
        return count + 1, now, f(now)

    return jax.lax.while_loop(goes_on, turn, (1, start, f(start)))[2]


def cell(p, z, x):
    return jnp.tanh(0.5 * z @ p["z"] + x @ p["x"])


@jax.custom_vjp
def equilibrium(p, x):
    """`z` with `z = cell(p, z, x)`."""
    return iterate(lambda z: cell(p, z, x), jnp.zeros_like(x))


def equilibrium_forward(p, x):
    z = equilibrium(p, x)
    return z, (p, x, z)


def equilibrium_backward(residuals, g):
    p, x, z = residuals
    _, pullback_z = jax.vjp(lambda z: cell(p, z, x), z)
    adjoint = iterate(lambda u: g + pullback_z(u)[0], g)
    _, pullback = jax.vjp(lambda p, x: cell(p, z, x), p, x)
    return pullback(adjoint)


equilibrium.defvjp(equilibrium_forward, equilibrium_backward)


def train_step(params, x, y):
    def loss_fn(params):
        hidden = equilibrium(params["cell"], jnp.tanh(x @ params["stem"]))
        return jnp.mean((hidden @ params["head"] - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return descend(params, grads), loss


def deep_equilibrium(size: str = "tiny") -> Case:
    s = SIZES[size]
    draw = np.random.default_rng(0)
    params = {
        "stem": weight(draw, s.width, s.width),
        "cell": {"z": weight(draw, s.width, s.width), "x": weight(draw, s.width, s.width)},
        "head": weight(draw, s.width, 1),
    }
    rows = s.batch * s.length
    return Case(step=train_step, args=(params, normal(draw, rows, s.width), normal(draw, rows, 1)), donate_argnums=(0,))
