"""What the tests of compiled programs share: a few real ones, compiled once."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from jaxckpt.compiler import compile_step
from jaxckpt.compiler.compile_options import dump_options
from tests.compiler.conftest import h200, h200x8

__all__ = ["h200", "h200x8"]

SPEC = jax.ShapeDtypeStruct
STATE = {"in": SPEC((512, 2048), jnp.bfloat16), "out": SPEC((2048, 512), jnp.bfloat16)}
BATCH = SPEC((4096, 512), jnp.bfloat16)
VOCABULARY = 8192


def block(x, weights, name):
    with jax.named_scope(name):
        return x + jax.nn.gelu(x @ weights["in"]) @ weights["out"]


def loss(params, batch, *, wrap=lambda f: f):
    x = batch
    for layer, weights in enumerate(params["blocks"]):
        x = wrap(partial(block, name=f"block_{layer}"))(x, weights)
    with jax.named_scope("head"):
        logits = (x @ params["head"]).astype(jnp.float32)
    return jax.nn.logsumexp(logits, axis=-1).mean() - logits[:, 0].mean()


def sgd(step_loss, params, momentum, batch):
    gradient = jax.grad(step_loss)(params, batch)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum


def params(layers=3):
    return {"blocks": [STATE] * layers, "head": SPEC((512, VOCABULARY), jnp.bfloat16)}


def scan_loss(weights, batch):
    def body(x, weights):
        return block(x, weights, "layer"), None

    return (jax.lax.scan(body, batch, weights)[0].astype(jnp.float32) ** 2).sum()


def scan_step(weights, batch):
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(scan_loss)(weights, batch))


STACKED = jax.tree.map(lambda spec: SPEC((6, *spec.shape), spec.dtype), STATE)


@pytest.fixture(scope="session")
def plain_step(h200):
    """Three blocks and a head, with momentum, both donated."""
    return compile_step(partial(sgd, loss), params(), params(), BATCH, target=h200, donate_argnums=(0, 1)).footprint


@pytest.fixture(scope="session")
def checkpointed_step(h200):
    """The same with `jax.checkpoint` around each block."""
    step_loss = partial(loss, wrap=jax.checkpoint)
    return compile_step(
        partial(sgd, step_loss), params(), params(), BATCH, target=h200, donate_argnums=(0, 1)
    ).footprint


@pytest.fixture(scope="session")
def scanned_step(h200):
    """Six blocks under `lax.scan`."""
    return compile_step(scan_step, STACKED, BATCH, target=h200, donate_argnums=0).footprint


@pytest.fixture(scope="session")
def dumped(h200, tmp_path_factory):
    """The bytes that XLA dumps of a small step."""
    folder = tmp_path_factory.mktemp("dump")
    compile_step(scan_step, STACKED, BATCH, target=h200, compiler_options=dump_options(folder))
    (file,) = folder.glob("*after_optimizations.hlo.pb")
    return file.read_bytes()
