"""An activation with a derivative of its own (`jax.custom_jvp`), and functions jitted inside functions jitted."""

import jax
import jax.numpy as jnp

from tests.zoo import mlp
from tests.zoo.case import Case, descend


@jax.custom_jvp
def safe_sqrt(x):
    """The square root, with a bounded derivative at zero."""
    return jnp.sqrt(jnp.maximum(x, 0.0))


@safe_sqrt.defjvp
def safe_sqrt_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    root = safe_sqrt(x)
    return root, t / (2 * jnp.maximum(root, 1e-2))


def custom_jvp_step(params, x, y):
    def loss_fn(params):
        return mlp.squared_error(params, x, y, activation=lambda z: safe_sqrt(jax.nn.softplus(z)))

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return descend(params, grads), loss


def custom_jvp(size: str = "tiny") -> Case:
    return Case(step=custom_jvp_step, args=mlp.build(size), donate_argnums=(0,))


@jax.jit
def swish(x):
    return x * jax.jit(jax.nn.sigmoid)(x)


@jax.jit
def jitted_layer(p, x):
    return swish(x @ p["w"] + p["b"])


@jax.jit
def jitted_loss(params, x, y):
    for p in params[:-1]:
        x = jitted_layer(p, x)
    return jnp.mean((mlp.forward(params[-1:], x) - y) ** 2)


def nested_jit_step(params, x, y):
    """The layers of equal shape share one jaxpr: the same variables stand for different values."""
    loss, grads = jax.value_and_grad(jitted_loss)(params, x, y)
    return jax.jit(descend)(params, grads), loss


def nested_jit(size: str = "tiny") -> Case:
    return Case(step=nested_jit_step, args=mlp.build(size), donate_argnums=(0,))
