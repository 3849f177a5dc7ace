"""A step that closes over arrays instead of taking them: they become constants of the jaxpr and count as memory."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.zoo import mlp
from tests.zoo.case import Case, descend, normal


def closure(size: str = "tiny") -> Case:
    """Random features: one constant is a device array, the other numpy's; one of them is read inside a nested jit."""
    params, x, y = mlp.build(size)
    draw = np.random.default_rng(1)
    features = normal(draw, x.shape[1], 64 * x.shape[1])
    back = draw.normal(size=features.shape[::-1]).astype(np.float32) / len(features.T) ** 0.5

    @jax.jit
    def projected(x):
        return jnp.cos(x @ features)

    def train_step(params, x, y):
        def loss_fn(params):
            return mlp.squared_error(params, projected(jnp.tanh(x * params[0]["b"].mean() + x)) @ back, y)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        return descend(params, grads), loss

    return Case(step=train_step, args=(params, x, y), donate_argnums=(0,))
