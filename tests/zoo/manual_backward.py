"""An MLP whose backward pass is written by hand: nothing in the name stack says which equation is of which phase."""

from itertools import pairwise

import jax.numpy as jnp
import numpy as np

from tests.zoo.case import SIZES, Case, descend, normal, weight


def forward(params, x):
    """The prediction and the input of every layer."""
    inputs = []
    for p in params[:-1]:
        inputs.append(x)
        x = jnp.tanh(x @ p["w"] + p["b"])
    return x @ params[-1]["w"] + params[-1]["b"], [*inputs, x]


def backward(params, inputs, cotangent):
    """The gradients, layer by layer from the last; what follows each tanh is the next layer's input."""
    grads = []
    for p, x in zip(reversed(params), reversed(inputs), strict=True):
        grads.append({"w": x.T @ cotangent, "b": cotangent.sum(0)})
        cotangent = (cotangent @ p["w"].T) * (1 - x**2)
    return grads[::-1]


def train_step(params, x, y):
    prediction, inputs = forward(params, x)
    error = prediction - y
    grads = backward(params, inputs, 2 * error / error.size)
    return descend(params, grads), jnp.mean(error**2)


def mlp(size: str = "tiny") -> Case:
    s = SIZES[size]
    draw = np.random.default_rng(0)
    widths = [s.width, *[4 * s.width] * s.depth, 1]
    params = [{"w": weight(draw, i, o), "b": jnp.zeros(o)} for i, o in pairwise(widths)]
    rows = s.batch * s.length
    return Case(step=train_step, args=(params, normal(draw, rows, s.width), normal(draw, rows, 1)), donate_argnums=(0,))
