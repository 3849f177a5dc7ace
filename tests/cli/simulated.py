"""A step for `test_simulate`."""

import jax
import jax.numpy as jnp


def made():
    """Six layers of products and activations."""

    def loss(w, x):
        for layer in w:
            x = jnp.tanh(jnp.sin(x @ layer))
        return x.sum()

    return jax.grad(loss), (jnp.ones((6, 32, 32)), jnp.ones((512, 32)))
