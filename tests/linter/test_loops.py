"""Lints of loops, each on a step that has what it looks for, and on its corrected twin."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from tests.linter.cases import BATCH, LAYERS, POLICIES, Pair, found, spec

OFFLOAD = POLICIES.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=["carried"],
    offload_src="device",
    offload_dst="pinned_host",
)
SAVE = POLICIES.save_only_these_names("carried")
LARGE = (spec(3, 8, 8), spec(8192, 8))


def layers(policy, *, name_input):
    @partial(jax.checkpoint, policy=policy)
    def layer(x, w):
        x = checkpoint_name(x, "carried") if name_input else x
        y = jnp.tanh(jnp.sin(x @ w) @ w)
        return y if name_input else checkpoint_name(y, "carried")

    return lambda x, ws: jax.lax.scan(lambda x, w: (layer(x, w), None), x, ws)[0]


def trained(policy, *, name_input):
    scanned = layers(policy, name_input=name_input)
    return jax.grad(lambda ws, x: scanned(x, ws).sum())


def nested(policy):
    scanned = layers(policy, name_input=True)
    return jax.grad(lambda ws, x: jax.lax.scan(lambda x, group: (scanned(x, group), None), x, ws)[0].sum())


def returning(*, weights):
    def loss(ws, x):
        body = jax.checkpoint(lambda x, w: (jnp.tanh(x @ w), w if weights else x.mean()))
        x, extra = jax.lax.scan(body, x, ws)
        return x.sum(), extra

    return jax.value_and_grad(loss, has_aux=True)


def masked(around):
    def loss(ws, x):
        def body(x, w_n):
            w, n = w_n
            keep = jnp.arange(512)[:, None] < n + jnp.arange(512)[None, :]
            return jnp.where(keep, x * w, 0.0), None

        return jax.lax.scan(around(body), x, (ws, jnp.arange(3)))[0].sum()

    return jax.grad(loss)


PAIRS = (
    Pair(
        code="carry-offloaded",
        bad=found(trained(OFFLOAD, name_input=False), LAYERS, BATCH),
        good=found(trained(OFFLOAD, name_input=True), LAYERS, BATCH),
        text="nothing is offloaded for it",
    ),
    Pair(
        code="carry-saved",
        bad=found(trained(SAVE, name_input=False), LAYERS, BATCH),
        good=found(trained(SAVE, name_input=True), LAYERS, BATCH),
        text="nothing is saved for it",
    ),
    Pair(
        code="nested-offload",
        bad=found(nested(OFFLOAD), spec(2, 3, 8, 8), BATCH),
        good=found(trained(OFFLOAD, name_input=True), LAYERS, BATCH),
        text="refuses to compile",
    ),
    Pair(
        code="small-copy",
        bad=found(trained(OFFLOAD, name_input=True), LAYERS, BATCH),
        good=found(trained(OFFLOAD, name_input=True), *LARGE),
        text="128 B are copied to host memory",
    ),
    Pair(
        code="parameters-returned",
        bad=found(returning(weights=True), LAYERS, BATCH),
        good=found(returning(weights=False), LAYERS, BATCH),
        text="float32[3,8,8] (768 B)",
    ),
    Pair(
        code="argument-derived-stacked",
        bad=found(masked(lambda body: body), spec(3), spec(512, 512)),
        good=found(masked(jax.checkpoint), spec(3), spec(512, 512)),
        text="bool[3,512,512] (768 KiB)",
    ),
)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_it_is_found_and_said_with_its_fix(pair):
    findings = pair.bad().of(pair.code)
    assert findings
    assert pair.text in findings[0].text
    assert findings[0].fix
    assert "test_loops.py" in findings[0].where.source


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_the_corrected_twin_is_left_alone(pair):
    assert not pair.good().of(pair.code)


def test_a_name_that_is_inside_the_body_too_has_its_effect():
    @partial(jax.checkpoint, policy=SAVE)
    def layer(x, w):
        return checkpoint_name(jnp.tanh(checkpoint_name(jnp.sin(x @ w), "carried") @ w), "carried")

    step = jax.grad(lambda ws, x: jax.lax.scan(lambda x, w: (layer(x, w), None), x, ws)[0].sum())
    assert not found(step, LAYERS, BATCH)().of("carry-saved")
