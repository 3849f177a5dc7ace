"""Lints of whole steps, each on a step that has what it looks for, and on its corrected twin."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from jaxckpt import Step
from jaxckpt.linter import lint
from tests.linter.cases import BATCH, MESH, WEIGHT, Pair, block, found, spec, stacked

HUGE = (spec(2**19, 2**19), spec(4, 2**19))


def with_logits(w, x, head):
    logits = block(w, x) @ head
    return -jax.nn.log_softmax(logits)[:, 0].mean()


def updated(w, x):
    return w - 0.1 * stacked(block)(w, x)


def clipped(w, x):
    gradient = stacked(block)(w, x)
    return gradient / jnp.maximum(1.0, jnp.sqrt(jnp.sum(gradient**2)))


def gathered(w, x):
    whole = jax.lax.with_sharding_constraint(w, NamedSharding(MESH, PartitionSpec()))
    return jnp.tanh(x @ whole)


SHARDED = (spec(8, 8, axes=("data",)), spec(4, 8, axes=("data",)))

PAIRS = (
    Pair(
        code="arguments-too-large",
        bad=found(stacked(block), *HUGE, target="h200"),
        good=found(stacked(block), target="h200"),
        text="Arguments take 1024.01 GiB",
    ),
    Pair(
        code="logits-dominate",
        bad=found(jax.grad(with_logits), spec(8, 8), spec(64, 8), spec(8, 4096)),
        good=found(jax.grad(with_logits), spec(8, 8), spec(64, 8), spec(8, 8)),
        text="float32[64,4096] take 1 MiB",
    ),
    Pair(
        code="donation-missing",
        bad=found(updated),
        good=found(updated, donate_argnums=0),
        text="1 arguments (256 B, the first is w)",
    ),
    Pair(
        code="gathered-parameter-kept",
        bad=found(stacked(gathered, gathered), *SHARDED),
        good=found(stacked(*[lambda w, x: jnp.tanh(x @ w)] * 2), *SHARDED),
        text="gathered from 128 B a device",
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


def test_donation_is_advised_as_the_steps_own_jit_has_it():
    def by_keyword(w, *, v, x):
        return updated(w, x), updated(v, x)

    class Trainer(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.ones(WEIGHT.shape))

        def train(self, x):
            self.w[...] = updated(self.w[...], x)

    filtered = eqx.filter_jit(updated)
    findings = (
        lint(Step(by_keyword, (WEIGHT,), kwargs={"v": WEIGHT, "x": BATCH})),
        lint(filtered, WEIGHT, BATCH),
        lint(Trainer().train, BATCH),
    )
    fixes = [each.of("donation-missing")[0].fix for each in findings]
    assert fixes[0] == "donate_argnums=(0,), donate_argnames=('v',) in its jit."
    assert fixes[1].startswith('donate="all-except-first" in its filter_jit')
    assert fixes[2].startswith("Pass what the step itself binds as arguments")
    batch_first = eqx.filter_jit(lambda x, w: updated(w, x), donate="all-except-first")
    assert not lint(batch_first, BATCH, WEIGHT).of("donation-missing")


def test_clipped_gradients_are_no_new_state():
    assert not lint(clipped, WEIGHT, BATCH).of("donation-missing")


@pytest.mark.parametrize("named", [False, True])
def test_modules_renamed_by_remat_are_found_in_paths(named):
    linen = pytest.importorskip("flax.linen")

    class Dense(linen.Module):
        @linen.compact
        def __call__(self, x):
            return jnp.tanh(linen.Dense(8)(x))

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            for number in range(2):
                name = f"Dense_{number}" if named else None
                x = linen.remat(Dense)(name=name)(x)
            return x.sum()

    net = Net()
    params = jax.eval_shape(net.init, jax.random.key(0), jnp.ones((4, 8)))
    found_renamed = lint(jax.grad(net.apply), params, BATCH).of("parameters-renamed")
    assert bool(found_renamed) is not named
    for finding in found_renamed:
        assert "CheckpointDense_0: weights that were saved as Dense_0 do not load" in finding.text


def test_a_constraint_that_gathers_nothing_is_left_alone():
    def constrained(w, x):
        return jnp.tanh(x @ jax.lax.with_sharding_constraint(w, NamedSharding(MESH, PartitionSpec("data"))))

    assert not found(stacked(constrained, constrained), *SHARDED)().of("gathered-parameter-kept")
