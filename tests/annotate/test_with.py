"""`with jaxckpt.scope(...)` marks a region; its policy acts when the step goes through `jaxckpt.apply`."""

import itertools

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
    with pytest.warns(UserWarning, match="has no effect here"):
        assert count(step, W, X)["tanh"] == 3
    planned = jaxckpt.apply(step)
    assert count(planned, W, X)["tanh"] > 3
    assert_same(jax.jit(planned)(W, X), step(W, X))


### The warning of a policy without effect


def fresh(around=lambda function: function):
    """A loss whose `with` statement has not warned yet: each has a file name of its own."""
    source = """
def loss(w, x):
    def part(y):
        with scope("tail", policy=policy):
            return jnp.tanh(jnp.tanh(y @ w) @ w)
    return (around(part)(jnp.tanh(x @ w)) ** 2).sum()
"""
    names = {"scope": scope, "policy": DOTS, "jnp": jnp, "around": around}
    exec(compile(source, f"loss-{next(_NUMBERS)}.py", "exec"), names)
    return names["loss"]


_NUMBERS = itertools.count()
NESTINGS = {
    "plain": lambda loss: jax.grad(loss),
    "jit around": lambda loss: jax.jit(jax.grad(loss)),
    "jit inside": lambda loss: jax.grad(jax.jit(loss)),
    "vmap": lambda loss: jax.vmap(jax.grad(loss), in_axes=(None, 0)),
    "vjp": lambda loss: lambda w, x: jax.vjp(loss, w, x)[1](1.0),
}
AROUND = {
    "checkpoint": jax.checkpoint,
    "scan": lambda part: lambda y: jax.lax.scan(lambda y, _: (part(y), None), y, length=2)[0],
    "cond": lambda part: lambda y: jax.lax.cond(y.sum() > 0, part, jnp.sin, y),
}


@pytest.mark.parametrize("step", NESTINGS.values(), ids=NESTINGS)
def test_a_policy_without_apply_warns_once_at_the_with_statement(step):
    loss = fresh()
    x = X[None] if step is NESTINGS["vmap"] else X
    with pytest.warns(UserWarning, match=r"without jaxckpt.apply") as caught:
        step(loss)(W, x)
    (warning,) = [each for each in caught if "jaxckpt.apply" in str(each.message)]
    assert (warning.filename, warning.lineno) == (loss.__code__.co_filename, 4)
    step(loss)(W, x)  # and warnings are errors in tests


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_a_policy_in_a_body_warns_too(around):
    with pytest.warns(UserWarning, match=r"without jaxckpt.apply"):
        jax.grad(fresh(around))(W, X)


def test_the_footprint_of_a_step_that_is_not_applied_warns():
    step = jax.grad(fresh())
    jaxckpt.footprint(jaxckpt.apply(step), W, X, target="cpu")
    other = jax.grad(fresh())
    with pytest.warns(UserWarning, match=r"without jaxckpt.apply"):
        jaxckpt.footprint(other, W, X, target="cpu")


@pytest.mark.parametrize("around", [lambda part: part, *AROUND.values()], ids=["plain", *AROUND])
def test_what_reads_the_policy_does_not_warn(around):
    """Warnings are errors in tests."""
    for use in (
        lambda step: jaxckpt.apply(step)(W, X),
        lambda step: jax.jit(jaxckpt.apply(step))(W, X),
        lambda step: jaxckpt.explain(step, W, X),
        lambda step: jaxckpt.lint(step, W, X),
        lambda step: jaxckpt.analyze(step, W, X),
        lambda step: jaxckpt.Planner(step, W, X, target="h200"),
    ):
        use(jax.grad(fresh(around)))


def test_what_is_not_differentiated_does_not_warn():
    loss = fresh()
    loss(W, X)
    jax.jit(loss)(W, X)
    jax.eval_shape(loss, W, X)


def test_a_scope_within_a_checkpointing_scope_acts_and_does_not_warn():
    step = jax.grad(scope(fresh(), policy=SAVE_NOTHING))
    assert step(W, X).shape == W.shape


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
