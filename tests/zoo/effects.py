"""Steps that talk to the host: what has an effect must happen exactly once, and a callback costs a round trip."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from tests.zoo import mlp
from tests.zoo.case import Case, descend


def debug_print_step(params, x, y):
    """Prints from the middle of the forward pass and behind the backward pass."""

    def loss_fn(params):
        hidden = mlp.forward(params[:2], x)
        jax.debug.print("largest activation {}", jnp.abs(hidden).max())
        return mlp.squared_error(params[2:], hidden, y)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    jax.debug.print("loss {}", loss)
    return descend(params, grads), loss


def debug_print(size: str = "tiny") -> Case:
    return Case(step=debug_print_step, args=mlp.build(size), donate_argnums=(0,))


@jax.custom_jvp
def host_tanh(x):
    """A function that only the host has."""
    return jax.pure_callback(np.tanh, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims")


@host_tanh.defjvp
def host_tanh_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    y = host_tanh(x)
    return y, t * (1 - y**2)


def pure_callback_step(params, x, y):
    loss, grads = jax.value_and_grad(lambda p: mlp.squared_error(p, x, y, activation=host_tanh))(params)
    return descend(params, grads), loss


def pure_callback(size: str = "tiny") -> Case:
    return Case(step=pure_callback_step, args=mlp.build(size), donate_argnums=(0,))


def ordered_callback_step(params, x, y):
    """Logs in an order that must be kept: the forward pass's line, then the loss's."""

    def loss_fn(params):
        hidden = mlp.forward(params[:2], x)
        log("activation", jnp.linalg.norm(hidden))
        return mlp.squared_error(params[2:], hidden, y)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    log("loss", loss)
    return descend(params, grads), loss


def log(what: str, value: jax.Array) -> None:
    # `io_callback` has no derivative, not even of a result that nothing reads.
    io_callback(lambda value: print(what, value), None, jax.lax.stop_gradient(value), ordered=True)


def ordered_callback(size: str = "tiny") -> Case:
    return Case(step=ordered_callback_step, args=mlp.build(size), donate_argnums=(0,))
