"""A residual convolutional network with batch norm in plain JAX: statistics go in and out beside the parameters."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

from tests.zoo.case import SIZES, Case, cross_entropy, descend, integers, normal, weight

MOMENTUM = 0.9


def conv(w, x, *, stride: int = 1):
    return jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def batch_norm(p, stats, x):
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    moved = {
        "mean": MOMENTUM * stats["mean"] + (1 - MOMENTUM) * mean,
        "variance": MOMENTUM * stats["variance"] + (1 - MOMENTUM) * variance,
    }
    return p["scale"] * (x - mean) * jax.lax.rsqrt(variance + 1e-5) + p["bias"], jax.lax.stop_gradient(moved)


def conv_norm(p, stats, x, *, stride: int = 1):
    return batch_norm(p["norm"], stats, conv(p["w"], x, stride=stride))


def residual_block(p, stats, x, *, stride: int):
    y, first = conv_norm(p["first"], stats["first"], x, stride=stride)
    y, second = conv_norm(p["second"], stats["second"], jax.nn.relu(y))
    shortcut = x if "shortcut" not in p else conv(p["shortcut"], x, stride=stride)
    return jax.nn.relu(y + shortcut), {"first": first, "second": second}


def resnet(params, stats, images):
    x, moved = conv(params["stem"], images), []
    for p, s in zip(params["blocks"], stats, strict=True):
        x, s_ = residual_block(p, s, x, stride=2 if "shortcut" in p else 1)
        moved.append(s_)
    return x.mean((1, 2)) @ params["head"], moved


def train_step(params, stats, images, labels):
    def loss_fn(params):
        logits, moved = resnet(params, stats, images)
        return cross_entropy(logits, labels), moved

    (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    return descend(params, grads), stats, loss


def conv_norm_params(draw, channels: int, out: int):
    return {"w": weight(draw, 3, 3, channels, out), "norm": {"scale": jnp.ones(out), "bias": jnp.zeros(out)}}


def conv_norm_stats(channels: int):
    return {"mean": jnp.zeros(channels), "variance": jnp.ones(channels)}


def block_params(draw, channels: int, out: int):
    params = {"first": conv_norm_params(draw, channels, out), "second": conv_norm_params(draw, out, out)}
    # A block that changes the width halves the image, and its shortcut is a convolution.
    return params if channels == out else params | {"shortcut": weight(draw, 1, 1, channels, out)}


def build(size: str = "tiny") -> Case:
    s = SIZES[size]
    draw = np.random.default_rng(0)
    widths = [s.width // 2, s.width // 2, s.width, s.width]
    params = {
        "stem": weight(draw, 3, 3, 3, widths[0]),
        "blocks": [block_params(draw, i, o) for i, o in pairwise([widths[0], *widths])],
        "head": weight(draw, widths[-1], 10),
    }
    stats = [{"first": conv_norm_stats(o), "second": conv_norm_stats(o)} for o in widths]
    images, labels = normal(draw, s.batch, s.length, s.length, 3), integers(draw, 10, s.batch)
    return Case(step=train_step, args=(params, stats, images, labels), donate_argnums=(0, 1))
