"""`with jaxckpt.scope(...)` marks a region; its policy acts when the step goes through `jaxckpt.apply`."""

import jax
import jax.numpy as jnp
import pytest

import jaxckpt
from jaxckpt import scope
from jaxckpt.policy import policy_of_mark
from jaxckpt.trace import trace_step
from tests.annotate.residuals import DOTS, SAVE_NOTHING, assert_same, count

W = jnp.linspace(0.1, 0.9, 16).reshape(4, 4)
X = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)


def loss(w, x):
    x = jnp.tanh(x @ w)
    with scope("tail", policy=DOTS):
        x = jnp.tanh(jnp.tanh(x @ w) @ w)
    return (x**2).sum()


def test_the_region_and_its_policy_are_in_the_graph():
    graph = trace_step(jax.grad(loss), W, X).graph
    tanhs = [op for op in graph.ops if op.phase == "forward" and op.primitive == "tanh"]
    assert [op.scope for op in tanhs] == ["", "tail", "tail"]
    assert [tuple(map(policy_of_mark, op.policies)) for op in tanhs] == [(), (DOTS,), (DOTS,)]


def test_alone_it_changes_nothing_and_under_apply_it_decides():
    step = jax.value_and_grad(loss)
    assert count(step, W, X)["tanh"] == 3
    planned = jaxckpt.apply(step)
    assert count(planned, W, X)["tanh"] > 3
    assert_same(jax.jit(planned)(W, X), step(W, X))


def test_a_scope_may_be_entered_again_but_not_inside_itself():
    again = scope("part", policy=SAVE_NOTHING)
    with again:
        pass
    with again, pytest.raises(jaxckpt.ScopeError, match="inside itself"):
        again.__enter__()
    with again, scope("other"):
        assert_same(jnp.tanh(X), jnp.tanh(X))


def test_an_error_inside_ends_the_scope():
    again = scope("part")
    with pytest.raises(ZeroDivisionError), again:
        raise ZeroDivisionError
    with again:
        pass
