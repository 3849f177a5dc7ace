"""Verdicts: each rule is worth what the compiled programs differ by, and what is without effect is said why."""

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import jaxckpt
from jaxckpt import Policy, PolicyError
from jaxckpt.comparison import Verdict, Verdicts, verdicts
from jaxckpt.report import render_text, verdicts_report
from tests.compiler.conftest import h200

__all__ = ["h200"]

LAYERS = 3
WEIGHTS = [jax.ShapeDtypeStruct((512, 512), jnp.float32)] * LAYERS
BATCH = jax.ShapeDtypeStruct((4096, 512), jnp.float32)


def _never_run(x):
    return checkpoint_name(jnp.tanh(x), "in_the_primal")


squashed = jax.custom_vjp(_never_run)
squashed.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (g * (1 - jnp.tanh(x) ** 2),))


def step(weights, x):
    def loss(weights):
        y = x
        for number, w in enumerate(weights):
            with jax.named_scope(f"block_{number}"):
                y = y + squashed(checkpoint_name(jnp.sin(y) @ w, "product")) @ w
        return checkpoint_name((y**2).mean(), "loss")

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


def policy(*rules, default="recompute"):
    return Policy.from_toml("\n".join([f'default = "{default}"', *(f"[[rule]]\n{rule}" for rule in rules)]))


OFFLOADED = policy(
    'name = "product"\ndecision = "offload"',
    'name = "prodct"\ndecision = "save"',
    'name = "in_the_primal"\ndecision = "save"',
    'name = "product"\ndecision = "save"',
)


@pytest.fixture(scope="module")
def by_name(h200):
    return verdicts(step, WEIGHTS, BATCH, target=h200, donate_argnums=0)


@pytest.fixture(scope="module")
def by_rule(h200):
    return verdicts(step, WEIGHTS, BATCH, target=h200, donate_argnums=0, policy=OFFLOADED)


def test_the_public_name_is_the_function():
    assert jaxckpt.verdicts is verdicts


def test_a_name_that_buys_time_with_memory_pays(by_name):
    product = by_name.of("product")
    assert product.word == "pays"
    assert product.value_count == LAYERS
    assert product.value_bytes == LAYERS * 4096 * 512 * 4
    assert product.bytes_change > 0
    assert product.flops_change < 0
    assert product.step_s_change < 0
    assert product.why == ""


def test_the_changes_are_those_of_the_compiled_programs(by_name, h200):
    saved = policy('name = "product"\ndecision = "save"')
    planner = jaxckpt.Planner(step, WEIGHTS, BATCH, target=h200, donate_argnums=0)
    with_it, without = planner.follow(saved).footprint, planner.follow(Policy(default="recompute")).footprint
    assert by_name.of("product").bytes_change == with_it.total_bytes - without.total_bytes
    assert by_name.total_bytes == with_it.total_bytes


def test_a_name_that_the_backward_does_not_read_has_no_effect(by_name):
    assert by_name.of("loss").word == "no effect"
    assert by_name.of("loss").why.startswith("dead in the backward")


def test_equal_plans_are_compiled_once(by_name, by_rule):
    assert by_name.compiles == 2
    assert by_rule.compiles == 2
    assert len(by_rule.verdicts) == 4


def test_a_name_that_nothing_has_was_never_attached(by_rule):
    assert by_rule.verdicts[1].word == "no effect"
    assert by_rule.verdicts[1].why.startswith("never attached")


def test_a_name_in_a_primal_is_said_to_be_in_it(by_rule):
    assert by_rule.verdicts[2].word == "no effect"
    assert "primal of the custom_vjp _never_run" in by_rule.verdicts[2].why


def test_a_rule_behind_another_one_has_no_effect(by_rule):
    assert by_rule.verdicts[3].why.startswith("other rules")


def test_what_an_offload_moves_is_seen(by_rule):
    assert by_rule.verdicts[0].decision == "offload"
    assert by_rule.verdicts[0].host_bytes_change > 0
    assert by_rule.host_bytes == by_rule.verdicts[0].host_bytes_change


def test_names_in_loops_have_their_verdict(h200):
    def looped(weights, x, name):
        def body(y, w):
            return jnp.tanh(checkpoint_name(y @ w, name)), None

        return jax.lax.scan(body, x, weights)[0].sum()

    def step(weights, x):
        return jax.grad(looped)(weights, x, "inside"), looped(weights, x, "beside")

    stacked = jax.ShapeDtypeStruct((3, 64, 64), jnp.float32)
    rows = jax.ShapeDtypeStruct((16, 64), jnp.float32)
    found = verdicts(step, stacked, rows, target=h200)
    assert found.of("inside").value_count == 1
    assert found.of("beside").why.startswith("inside the body of a scan")


def test_a_save_where_everything_is_saved_changes_nothing(h200):
    found = verdicts(
        step,
        WEIGHTS,
        BATCH,
        target=h200,
        donate_argnums=0,
        policy=policy('name = "product"\ndecision = "save"', default="save"),
    )
    assert found.verdicts[0].word == "no effect"
    assert found.verdicts[0].why == "what decides without it decides the same"
    assert found.compiles == 1


def test_a_policy_that_is_nowhere_is_refused():
    with pytest.raises(PolicyError):
        verdicts(step, WEIGHTS, BATCH, target="h200", policy="nowhere")


def made(**figures):
    return Verdict(subject="qkv", decision="save", word="free", **figures)


def test_the_report_shows_signs_and_reasons():
    whole = Verdicts(
        step="step",
        policy="all names saved",
        target="h200",
        total_bytes=2**30,
        host_bytes=0,
        flops=3_000_000_000,
        step_s=0.5,
        compiles=2,
        verdicts=(made(bytes_change=-1024, flops_change=2_000_000_000), made(why="never attached")),
    )
    text = render_text(verdicts_report(whole))
    assert 'step under "all names saved"' in text
    assert "-1 KiB" in text
    assert "+2 " in text
    assert "never attached" in text
    assert "2 programs were compiled" in " ".join(text.split())
