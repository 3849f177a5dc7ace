"""Lints of the user's own `jax.checkpoint`s, each on a step that has what it looks for, and on its corrected twin."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas

import jaxckpt
from jaxckpt.linter import lint, primal_of_name
from tests.linter.cases import BATCH, POLICIES, WEIGHT, Pair, block, found, spec, stacked

HAS_REMAT3 = hasattr(jax.config, "jax_remat3") and jax.__version_info__ >= (0, 12)
KEY = jax.random.key(0)


def checkpointed(policy=None):
    return jax.checkpoint(block, policy=policy)


def named_block(w, x):
    return checkpoint_name(jnp.tanh(checkpoint_name(x @ w, "product") @ w), "out")


def saving(*names):
    return jax.checkpoint(named_block, policy=POLICIES.save_only_these_names(*names))


def attention_step(policy):
    layer = jax.checkpoint(lambda w, x: jnp.einsum("hid,de->hie", _mixed(x @ w), w), policy=policy)
    return jax.grad(lambda w, x: (layer(w, layer(w, x)) @ w).sum())


def _mixed(x):
    return jnp.einsum("hij,hjd->hid", jax.nn.softmax(jnp.einsum("hid,hjd->hij", x, x)), x)


def vmapped(policy):
    layer = jax.checkpoint(block, policy=policy)
    return jax.grad(lambda w, x: (jax.vmap(layer)(w, jax.vmap(layer)(w, x)) @ w).sum())


def printing(w, x):
    x = block(w, x)
    jax.debug.print("{}", x[0, 0])
    return x


def dropped(w, x, key):
    x = jnp.tanh(x @ w)
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0.0)


def dropped_outside(w, x, key):
    keep = jax.random.bernoulli(key, 0.5, (4, 8))
    return jax.checkpoint(lambda w, x: jnp.where(keep, jnp.tanh(x @ w), 0.0))(w, x)


def _tanh_kernel(x, out):
    out[...] = jnp.tanh(x[...])


def _tanh(x):
    return pallas.pallas_call(_tanh_kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


@jax.custom_vjp
def kernel(x):
    return _tanh(x)


def _kernel_forward(x):
    y = checkpoint_name(_tanh(x), "kernel_out")
    return y, y


kernel.defvjp(_kernel_forward, lambda y, g: (g * (1 - y * y),))


def kernel_block(w, x):
    return jnp.sin(kernel(x @ w) @ w)


@jax.custom_vjp
def named_in_primal(x):
    return checkpoint_name(jnp.tanh(x), "only_in_the_primal")


named_in_primal.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (g * (1 - jnp.tanh(x) ** 2),))


@jax.custom_vjp
def named_in_forward(x):
    return checkpoint_name(jnp.tanh(x), "in_the_forward_rule")


named_in_forward.defvjp(
    lambda x: (y := checkpoint_name(jnp.tanh(x), "in_the_forward_rule"), y), lambda y, g: (g * (1 - y * y),)
)


def custom(function, name):
    layer = jax.checkpoint(lambda w, x: function(x @ w) @ w, policy=POLICIES.save_only_these_names(name))
    return stacked(layer, layer)


def whole(around):
    return jax.grad(around(lambda w, x: jnp.sin(block(w, x) @ w).sum()))


def ending(*blocks):
    """Nothing but elementwise work behind the last block."""

    def loss(w, x):
        for each in blocks:
            x = each(w, x)
        return (x**2).sum()

    return jax.grad(loss)


SCORES = (spec(8, 8), spec(2, 64, 8))
TWO_DEVICES = (spec(8, 8, axes=()), spec(4, 8, axes=("data",)), KEY)

PAIRS = (
    Pair(
        code="whole-function",
        bad=found(whole(jax.checkpoint)),
        good=found(stacked(checkpointed(), checkpointed())),
        text="everything that is differentiated",
    ),
    Pair(code="last-stage", bad=found(ending(block, checkpointed())), good=found(ending(checkpointed(), block))),
    Pair(
        code="scope-twice",
        bad=found(stacked(jax.checkpoint(checkpointed()), block)),
        good=found(stacked(jax.checkpoint(lambda w, x: checkpointed()(w, checkpointed()(w, x))), block)),
        text="directly inside another",
    ),
    Pair(
        code="save-all-stub",
        bad=found(stacked(checkpointed(POLICIES.save_anything_except_these_names("out")))),
        good=found(stacked(checkpointed(POLICIES.save_any_names_but_these("out")))),
        text="saves every value",
    ),
    Pair(
        code="unknown-names",
        bad=found(stacked(saving("prodct"))),
        good=found(stacked(saving("product"))),
        text="The step's names: out, product",
    ),
    Pair(
        code="missing-names",
        bad=found(stacked(saving("product", "outt"))),
        good=found(stacked(saving("product", "out"))),
        text="in the step: product",
    ),
    Pair(
        code="name-on-primal",
        bad=found(custom(named_in_primal, "only_in_the_primal")),
        good=found(custom(named_in_forward, "in_the_forward_rule")),
        text="primal function named_in_primal",
    ),
    Pair(
        code="dots-saving-scores",
        bad=found(attention_step(POLICIES.dots_saveable), *SCORES),
        good=found(attention_step(POLICIES.dots_with_no_batch_dims_saveable), *SCORES),
        text="32 KiB",
    ),
    Pair(
        code="dots-all-batched",
        bad=found(vmapped(POLICIES.dots_with_no_batch_dims_saveable), spec(2, 8, 8), spec(2, 4, 8)),
        good=found(stacked(checkpointed(POLICIES.dots_with_no_batch_dims_saveable))),
        text="vmap adds a batch dimension to each",
    ),
    Pair(
        code="callback-repeated",
        bad=found(stacked(jax.checkpoint(printing), block)),
        good=found(stacked(printing, checkpointed())),
        text="twice a step",
    ),
    Pair(
        code="random-redrawn",
        bad=found(stacked(jax.checkpoint(dropped), dropped), *TWO_DEVICES),
        good=found(stacked(dropped_outside, dropped), *TWO_DEVICES),
        text="over 2 devices",
    ),
    Pair(
        code="kernel-recomputed-by-checkpoint",
        bad=found(stacked(jax.checkpoint(kernel_block), block)),
        good=found(stacked(kernel_block, checkpointed())),
        text="pallas_call",
    ),
)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_it_is_found_and_said_with_its_fix(pair):
    findings = pair.bad().of(pair.code)
    assert findings
    assert pair.text in findings[0].text
    assert findings[0].fix


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_the_corrected_twin_is_left_alone(pair):
    assert not pair.good().of(pair.code)


@pytest.mark.skipif(not HAS_REMAT3, reason="before jax 0.12 differentiated steps hold no trace of jax_remat3")
@pytest.mark.parametrize(
    ("policy", "codes"),
    [(lambda primitive, *_, **__: primitive.name == "sin", ("remat3-policy",)), (POLICIES.dots_saveable, ())],
)
def test_policies_that_remat3_does_not_ask_are_void(policy, codes):
    def fresh(w, x):  # traced under the flag, and never elsewhere
        return jnp.tanh(jnp.sin(x @ w) @ w)

    before = jax.config.jax_remat3
    jax.config.update("jax_remat3", True)
    try:
        found_codes = lint(stacked(jax.checkpoint(fresh, policy=policy), fresh), WEIGHT, BATCH).codes
    finally:
        jax.config.update("jax_remat3", before)
    assert found_codes == codes


def test_a_full_checkpoint_that_saves_products_is_no_mistake():
    around = partial(jax.checkpoint, policy=POLICIES.dots_saveable)
    assert not lint(whole(around), WEIGHT, BATCH).of("whole-function")


def test_two_scopes_side_by_side_are_neither_the_last():
    def loss(w, x):
        return checkpointed()(w, x).sum() + checkpointed()(w, 2 * x).sum()

    assert not lint(jax.grad(loss), WEIGHT, BATCH).codes


def test_random_bits_on_one_device_are_no_matter():
    step = stacked(jax.checkpoint(dropped), dropped)
    assert not lint(step, WEIGHT, BATCH, KEY).of("random-redrawn")


def test_equal_layers_are_one_finding_with_their_number():
    (finding,) = lint(stacked(*[jax.checkpoint(printing)] * 4), WEIGHT, BATCH).of("callback-repeated")
    assert finding.count == 4
    assert "test_scopes.py" in finding.where.source
    assert "(and 3 more)" in str(finding)


def test_our_own_scope_around_everything_is_no_better():
    nothing, products = jaxckpt.Policy(default="recompute"), jaxckpt.load_policy("dots")
    for policy, is_found in ((nothing, True), (products, False)):
        findings = lint(whole(lambda loss, p=policy: jaxckpt.scope(loss, policy=p)), WEIGHT, BATCH)
        assert bool(findings.of("whole-function")) is is_found


def test_a_full_checkpoint_that_saves_a_name_is_no_mistake():
    def loss(w, x):
        return jnp.sin(named_block(w, x) @ w).sum()

    for names, is_found in (((), True), (("product",), False)):
        around = jax.checkpoint(loss, policy=POLICIES.save_only_these_names(*names) if names else None)
        assert bool(lint(jax.grad(around), WEIGHT, BATCH).of("whole-function")) is is_found


def test_a_name_of_the_primal_alone_is_found():
    assert "named_in_primal" in primal_of_name("only_in_the_primal")
    assert primal_of_name("in_the_forward_rule") is None
    assert primal_of_name("nowhere at all") is None
