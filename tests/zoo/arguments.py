"""What steps are called with: leaves that are no f32 arrays, Python numbers, static arguments, a jit of their own."""

from functools import partial

import jax
import jax.numpy as jnp

from tests.zoo import mlp
from tests.zoo.case import Case, descend


def other_leaves_step(state, x, y):
    """A counter, a mask of frozen units, an optional teacher, and a momentum that is not there."""

    def loss_fn(params):
        loss = mlp.squared_error(params, x, y)
        return loss if state["teacher"] is None else loss + mlp.squared_error(state["teacher"], x, y)

    loss, grads = jax.value_and_grad(loss_fn)(state["params"])
    updated = descend(state["params"], grads)
    held = state["frozen"] & (state["count"] < 100)
    params = jax.tree.map(lambda new, old: jnp.where(held, old, new), updated, state["params"])
    state = state | {"params": params, "count": state["count"] + 1}
    return state, {"loss": loss, "moved": ~held, "step": state["count"], "grad_norm": None}


def other_leaves(size: str = "tiny") -> Case:
    params, x, y = mlp.build(size)
    state = {
        "params": params,
        "count": jnp.int32(0),
        "frozen": jnp.array(False),
        "teacher": None,
        "momentum": (None, ()),
    }
    return Case(step=other_leaves_step, args=(state, x, y), donate_argnums=(0,))


def python_scalars_step(params, x, y, rate, count, warm):
    """Python's numbers are traced as weakly typed scalars; the results keep the parameters' dtype."""
    loss, grads = jax.value_and_grad(mlp.squared_error)(params, x, y)
    rate = jnp.where(warm, rate, 0.1 * rate)
    return jax.tree.map(lambda p, g: p - rate * g, params, grads), count + 1, loss


def python_scalars(size: str = "tiny") -> Case:
    return Case(step=python_scalars_step, args=(*mlp.build(size), 0.1, 3, True), donate_argnums=(0,))


def static_step(params, x, y, depth, activation):
    """How many layers are trained, and with which activation, is known while tracing."""
    frozen, trained = params[:-depth], params[-depth:]

    def loss_fn(trained):
        return mlp.squared_error(frozen + trained, x, y, activation=getattr(jax.nn, activation))

    loss, grads = jax.value_and_grad(loss_fn)(trained)
    return frozen + descend(trained, grads), loss


def static(size: str = "tiny") -> Case:
    return Case(step=static_step, args=(*mlp.build(size), 2, "gelu"), donate_argnums=(0,), static_argnums=(3, 4))


@partial(jax.jit, donate_argnames=("params", "momentum"), static_argnames=("nesterov",))
def jitted_step(params, momentum, x, y, *, nesterov=True):
    """Jitted and donated by name where it is defined, as libraries ship their steps."""
    loss, grads = jax.value_and_grad(mlp.squared_error)(params, x, y)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    direction = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads) if nesterov else momentum
    return descend(params, direction), momentum, loss


def jitted(size: str = "tiny") -> Case:
    params, x, y = mlp.build(size)
    return Case(step=jitted_step, args=(params, jax.tree.map(jnp.zeros_like, params), x, y))
