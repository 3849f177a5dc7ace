"""A U-Net: the first residuals are read by the last layers, so that no cut in the middle is narrow."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.zoo.case import SIZES, Case, descend, normal, weight
from tests.zoo.resnet import conv


def group_norm(p, x, *, groups: int = 4):
    grouped = x.reshape(*x.shape[:-1], groups, -1)
    mean = grouped.mean((1, 2, 4), keepdims=True)
    variance = grouped.var((1, 2, 4), keepdims=True)
    normed = (grouped - mean) * jax.lax.rsqrt(variance + 1e-5)
    return normed.reshape(x.shape) * p["scale"] + p["bias"]


def conv_block(p, x):
    return jax.nn.silu(group_norm(p["norm"], conv(p["w"], x)))


def half_size(x):
    batch, height, width, channels = x.shape
    return x.reshape(batch, height // 2, 2, width // 2, 2, channels).mean((2, 4))


def double_size(x):
    batch, height, width, channels = x.shape
    return jax.image.resize(x, (batch, 2 * height, 2 * width, channels), "nearest")


def unet(params, x):
    skips = []
    for p in params["down"]:
        x = conv_block(p, x)
        skips.append(x)
        x = half_size(x)
    x = conv_block(params["middle"], x)
    for p in params["up"]:
        x = conv_block(p, jnp.concatenate([double_size(x), skips.pop()], axis=-1))
    return conv(params["out"], x)


def train_step(params, noisy, clean):
    """One step of a denoiser."""
    loss, grads = jax.value_and_grad(lambda p: jnp.mean((unet(p, noisy) - clean) ** 2))(params)
    return descend(params, grads), loss


def block_params(draw, channels: int, out: int):
    return {"w": weight(draw, 3, 3, channels, out), "norm": {"scale": jnp.ones(out), "bias": jnp.zeros(out)}}


def denoiser(size: str = "tiny") -> Case:
    s = SIZES[size]
    draw = np.random.default_rng(0)
    narrow, wide = s.width // 2, s.width
    params = {
        "down": [block_params(draw, 3, narrow), block_params(draw, narrow, wide)],
        "middle": block_params(draw, wide, wide),
        "up": [block_params(draw, 2 * wide, narrow), block_params(draw, 2 * narrow, narrow)],
        "out": weight(draw, 3, 3, narrow, 3),
    }
    clean = normal(draw, s.batch, s.length, s.length, 3)
    return Case(step=train_step, args=(params, clean + 0.1 * normal(draw, *clean.shape), clean), donate_argnums=(0,))
