"""Two networks, two losses and two gradients in one step; the second reads what the first has updated."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.zoo import mlp
from tests.zoo.case import SIZES, Case, descend, normal


def discriminator_loss(discriminator, generator, real, noise):
    fake = mlp.forward(generator, noise)
    real_logits, fake_logits = mlp.forward(discriminator, real), mlp.forward(discriminator, fake)
    return jnp.mean(jax.nn.softplus(-real_logits) + jax.nn.softplus(fake_logits))


def generator_loss(generator, discriminator, noise):
    return jnp.mean(jax.nn.softplus(-mlp.forward(discriminator, mlp.forward(generator, noise))))


def train_step(generator, discriminator, real, noise):
    d_loss, d_grads = jax.value_and_grad(discriminator_loss)(discriminator, generator, real, noise)
    discriminator = descend(discriminator, d_grads)
    g_loss, g_grads = jax.value_and_grad(generator_loss)(generator, discriminator, noise)
    return descend(generator, g_grads), discriminator, {"generator": g_loss, "discriminator": d_loss}


def gan(size: str = "tiny") -> Case:
    s = SIZES[size]
    draw = np.random.default_rng(0)
    generator = mlp.params_of(draw, s.width, 2 * s.width, 2 * s.width, s.width)
    discriminator = mlp.params_of(draw, s.width, 2 * s.width, 2 * s.width, 1)
    rows = s.batch * s.length
    args = (generator, discriminator, normal(draw, rows, s.width), normal(draw, rows, s.width))
    return Case(step=train_step, args=args, donate_argnums=(0, 1))
