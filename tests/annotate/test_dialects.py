"""One block in four dialects: a scope changes what is kept, and nothing else."""

from functools import cache, partial

import jax
import pytest

import jaxckpt
from jaxckpt import scope
from jaxckpt.trace import trace_step
from tests.annotate.blocks import DIALECTS, X
from tests.annotate.residuals import DOTS, SAVE_ALL, SAVE_NOTHING, assert_same, count, kept, policy
from tests.zoo.case import quick_jit

POLICIES = {
    "nothing": SAVE_NOTHING,
    "dots": DOTS,
    "offloaded": policy('name = "qkv"\ndecision = "offload"', 'name = "hidden"'),
    "all but scores": policy('name = "scores"\ndecision = "recompute"', default="save"),
}


@pytest.fixture(params=DIALECTS)
def dialect(request):
    return DIALECTS[request.param]


@cache
def unscoped(dialect):
    """Parameters, and loss and gradients, without a scope."""
    loss, parameters = DIALECTS[dialect](lambda block: block)
    return parameters, quick_jit(jax.value_and_grad(loss))(parameters, X)


@pytest.mark.parametrize(
    ("dialect", "chosen"),
    [
        pytest.param(dialect, chosen, id=f"{dialect}-{name}")
        for dialect in DIALECTS
        for name, chosen in POLICIES.items()
        if dialect == "plain" or name == "offloaded"
    ],
)
def test_loss_gradients_and_the_paths_of_parameters_are_the_same(dialect, chosen):
    parameters, expected = unscoped(dialect)
    scoped, same_parameters = DIALECTS[dialect](partial(scope, policy=chosen))
    assert_same(same_parameters, parameters)
    assert_same(quick_jit(jax.value_and_grad(scoped))(same_parameters, X), expected)


def test_without_a_policy_a_scope_is_only_a_name(dialect):
    loss, parameters = dialect(lambda block: block)
    scoped, same_parameters = dialect(scope)
    assert kept(scoped, same_parameters, X) == kept(loss, parameters, X)
    assert count(jax.grad(scoped), same_parameters, X) == count(jax.grad(loss), parameters, X)


def test_exactly_what_is_named_is_kept(dialect):
    wide = "float32[2,6,24]"
    assert [kept(*_both(dialect, chosen))[wide] for chosen in (policy('name = "qkv"'), policy('name = "hidden"'))] == [
        2,
        0,
    ]


def _both(dialect, chosen):
    loss, parameters = dialect(partial(scope, policy=chosen))
    return loss, parameters, X


def test_forward_operations_run_twice_exactly_where_they_should(dialect):
    def tanhs(chosen):
        loss, parameters = dialect(partial(scope, policy=chosen))
        return count(jax.grad(loss), parameters, X)["tanh"]

    assert [tanhs(each) for each in (SAVE_ALL, SAVE_NOTHING, policy('name = "hidden"'))] == [2, 4, 2]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_joint_engine_finds_the_policy_of_a_scope(dialect):
    scoped, parameters = DIALECTS[dialect](partial(scope, policy=policy('name = "{qkv,hidden}"'), name="block"))
    step = jax.value_and_grad(scoped)
    assert_same(quick_jit(jaxckpt.apply(step))(parameters, X), unscoped(dialect)[1])
    graph = trace_step(step, parameters, X).graph
    forward = [op for op in graph.ops if op.phase == "forward" and op.primitive == "tanh"]
    assert [len(op.policies) for op in forward] == [1, 1]
    assert all("block" in op.scope and "jaxckpt" not in op.scope for op in forward)
    assert not any((value.name or "").startswith("jaxckpt") for value in graph.values)
    assert {"qkv", "hidden"} <= {value.name for value in graph.values}


@pytest.mark.parametrize("ready", jaxckpt.policies())
def test_every_ready_policy_that_fits_the_block_gives_the_same(ready):
    parameters, expected = unscoped("plain")
    scoped, _ = DIALECTS["plain"](partial(scope, policy=ready))
    try:
        found = jax.value_and_grad(scoped)(parameters, X)
    except (jaxckpt.PolicyError, jaxckpt.UnsupportedDecisionError) as error:
        pytest.skip(f"does not fit: {error.got}")
    assert_same(found, expected)
