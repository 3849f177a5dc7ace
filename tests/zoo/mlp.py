"""The plain MLP that the smaller families of the zoo are variations on."""

from itertools import pairwise

import jax.numpy as jnp
import numpy as np

from tests.zoo.case import SIZES, normal, weight


def forward(params, x, *, activation=jnp.tanh):
    for p in params[:-1]:
        x = activation(x @ p["w"] + p["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def squared_error(params, x, y, **options):
    return jnp.mean((forward(params, x, **options) - y) ** 2)


def params_of(draw, *widths: int):
    return [{"w": weight(draw, i, o), "b": jnp.zeros(o)} for i, o in pairwise(widths)]


def build(size: str):
    """Parameters of a regression on one number, inputs and targets."""
    s = SIZES[size]
    draw = np.random.default_rng(0)
    params = params_of(draw, s.width, *[2 * s.width] * s.depth, 1)
    return params, normal(draw, s.batch * s.length, s.width), normal(draw, s.batch * s.length, 1)
