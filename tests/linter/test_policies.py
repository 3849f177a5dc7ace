"""Lints of policies against steps, each on a policy that has what it looks for, and on its corrected twin."""

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import jaxckpt
from jaxckpt import Policy, PolicyError
from jaxckpt.linter import POLICY_ERROR_LINTS, lint, lint_traced, raise_on_errors
from jaxckpt.policy import Regions
from jaxckpt.trace import trace_step
from tests.linter.cases import BATCH, LAYERS, WEIGHT, Pair, found, spec, stacked
from tests.linter.test_scopes import dropped, kernel_block, named_block, named_in_forward, named_in_primal
from tests.sharded import DOWN, UP, X, around_blocks

NAMED = stacked(named_block, named_block)
KEY = jax.random.key(0)


def policy(*rules, default="recompute"):
    return Policy.from_toml("\n".join([f'default = "{default}"', *(f"[[rule]]\n{rule}" for rule in rules)]))


def saving(name, decision="save"):
    return policy(f'name = "{name}"\ndecision = "{decision}"')


def in_custom(function):
    return stacked(lambda w, x: function(x @ w) @ w)


def attention(w, x):
    x = x @ w
    scores = jnp.einsum("hid,hjd->hij", x, x)
    return jnp.tanh(jnp.einsum("hij,hjd->hid", jax.nn.softmax(scores), x) @ w)


def masked(w, x):
    keep = checkpoint_name(jnp.arange(4)[:, None] < jnp.arange(8)[None, :], "mask")
    return jnp.where(keep, checkpoint_name(jnp.tanh(x @ w), "hidden"), 0.0)


def deep(weights, x):
    def loss(weights):
        y = x
        with jax.named_scope("net"):
            for number, w in enumerate(weights):
                with jax.named_scope(f"block_{number}"):
                    y = y + jnp.tanh(jnp.sin(y) @ w) @ w
        return (y**2).sum()

    return jax.grad(loss)(weights)


def regions(scope):
    return Policy(regions=Regions(scope=scope), default="save")


DEEP = ([spec(64, 64)] * 4, spec(4096, 64))
SCORES = (spec(8, 8), spec(2, 64, 8))
TWO_DEVICES = (spec(8, 8, axes=()), spec(64, 8, axes=("data",)), KEY)

PAIRS = (
    Pair(
        code="unmatched-rule",
        bad=found(NAMED, policy=saving("prodct")),
        good=found(NAMED, policy=saving("product")),
        text="the closest name is 'product'",
    ),
    Pair(
        code="rule-on-primal",
        bad=found(in_custom(named_in_primal), policy=saving("only_in_the_primal")),
        good=found(in_custom(named_in_forward), policy=saving("in_the_forward_rule")),
        text="primal function named_in_primal",
    ),
    Pair(
        code="small-offload",
        bad=found(NAMED, policy=saving("product", "offload")),
        good=found(NAMED, spec(8, 8), spec(8192, 8), policy=saving("product", "offload")),
        text="(128 B) product",
    ),
    Pair(
        code="scores-saved",
        bad=found(
            stacked(attention, attention),
            *SCORES,
            policy=policy('primitive = "dot_general"\ndecision = "save"'),
        ),
        good=found(
            stacked(attention, attention),
            *SCORES,
            policy=policy('primitive = "dot_general"\nbatched = false\ndecision = "save"'),
        ),
        text="(32 KiB)",
    ),
    Pair(
        code="kernel-recomputed",
        bad=found(stacked(kernel_block, kernel_block), policy="nothing"),
        good=found(stacked(kernel_block, kernel_block), policy=saving("kernel_out")),
        text="pallas_call",
    ),
    Pair(
        code="argument-derived-saved",
        bad=found(stacked(masked, masked), policy=saving("mask")),
        good=found(stacked(masked, masked), policy=saving("hidden")),
        text="bool[4,8]",
    ),
    Pair(
        code="no-memory-saved",
        bad=found(deep, *DEEP, policy=regions("net")),
        good=found(deep, *DEEP, policy=regions("net/block_*")),
        text="of temporaries are expected",
    ),
    Pair(
        code="random-redrawn-by-policy",
        bad=found(stacked(dropped, dropped), *TWO_DEVICES, policy="nothing"),
        good=found(
            stacked(dropped, dropped),
            *TWO_DEVICES,
            policy=policy('random = true\ndecision = "save"', default="save"),
        ),
        text="over 2 devices",
    ),
)


def test_what_each_device_draws_for_itself_may_be_drawn_again():
    step = around_blocks(check_vma=True, remat=False)
    findings = lint(step, (UP, DOWN), X, policy="nothing")
    assert not findings.of("random-redrawn-by-policy")


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_it_is_found_and_said_with_its_fix(pair):
    findings = pair.bad().of(pair.code)
    assert findings
    assert pair.text in findings[0].text
    assert findings[0].fix


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_the_corrected_twin_is_left_alone(pair):
    assert not pair.good().of(pair.code)


def over_layers(ws, x):
    return jax.lax.scan(lambda x, w: (named_block(w, x), None), x, ws)[0].sum()


def test_a_name_in_an_open_loop_is_found():
    assert not lint(jax.grad(over_layers), LAYERS, BATCH, policy=saving("product")).of("unmatched-rule")


def test_a_name_in_a_loop_that_stays_whole_is_said_to_be_there():
    def step(ws, x):
        return jax.grad(lambda ws, x: jnp.sin(ws @ ws).sum() + x.sum())(ws, x), over_layers(ws, x)

    (finding,) = lint(step, LAYERS, BATCH, policy=saving("product")).of("unmatched-rule")
    assert "inside a scan" in finding.fix
    assert "test_scopes.py" in finding.fix


def test_void_findings_are_refused_all_at_once_with_their_fixes():
    two = policy('name = "prodct"\ndecision = "save"', 'scope = "nowhere/*"\ndecision = "save"')
    findings = lint(NAMED, WEIGHT, BATCH, policy=two)
    with pytest.raises(PolicyError, match="does not fit") as refused:
        raise_on_errors(findings)
    assert len(refused.value.problems) == 2
    assert refused.value.findings == findings.errors
    assert "(2)" in refused.value.got


def test_advice_is_not_refused():
    findings = lint(NAMED, WEIGHT, BATCH, policy=saving("product", "offload"))
    assert "small-offload" in findings.codes
    raise_on_errors(findings)


def test_carrying_out_a_policy_asks_for_nothing_else():
    """The user's own checkpoints are undone then, whatever is wrong with them."""
    traced = trace_step(jax.grad(jax.checkpoint(lambda w, x: block_sum(w, x))), WEIGHT, BATCH)
    assert not lint_traced(traced, policy=Policy(default="recompute"), lints=POLICY_ERROR_LINTS).codes
    assert lint_traced(traced).codes == ("whole-function",)


def block_sum(w, x):
    return named_block(w, x).sum()


def test_the_public_name_is_the_function():
    assert jaxckpt.lint is lint


def test_findings_print_and_are_found_by_code():
    findings = lint(NAMED, WEIGHT, BATCH, policy=saving("prodct"))
    assert str(findings).startswith("unmatched-rule: a rule matches nothing [the step]")
    assert list(findings) == list(findings.findings)
    assert len(findings) == 1
    assert str(lint(NAMED, WEIGHT, BATCH)).endswith("nothing to say")


def test_a_policy_reaches_into_the_body_of_a_loop():
    def loss(ws, x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), jnp.sin(x), ws)[0].sum()

    findings = lint(jax.grad(loss), spec(8, 64, 64), spec(512, 64), policy="nothing")
    assert not findings.of("no-memory-saved")


def test_two_names_on_one_line_are_two_findings():
    """Each has advice of its own: with one of them carried out the other would be found next."""

    @jax.custom_vjp
    def function(x):
        return checkpoint_name(checkpoint_name(jnp.sin(x), "first") * 2, "second")

    function.defvjp(lambda x: (jnp.sin(x) * 2, x), lambda x, g: (g * jnp.cos(x) * 2,))
    policy = jax.checkpoint_policies.save_only_these_names("first", "second")

    def loss(weights, x):
        return jax.checkpoint(lambda w, x: jnp.sin(function(x @ w) @ w), policy=policy)(weights, x).sum()

    findings = jaxckpt.lint(jax.grad(loss), jnp.ones((8, 8)), jnp.ones((8, 8)))
    named = [each.fix for each in findings if each.code == "name-on-primal"]
    assert len(named) == 2
    assert any('"first"' in fix for fix in named)
    assert any('"second"' in fix for fix in named)
