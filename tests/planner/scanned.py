"""A step of scanned layers for plans that split or nest loops, and what holds of such plans in a user's hands."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxckpt
from jaxckpt import PlanMismatchError
from jaxckpt.report import plan_report, render_text
from jaxckpt.rewrite import rewrite
from jaxckpt.rewrite.agreement import digest
from jaxckpt.verifier.interpret import run_one_by_one


def block(x, w):
    return x + jnp.tanh(jnp.sin(x @ w[0]) @ w[1]), None


def make_step(**options):
    def loss(w, x):
        return (jax.lax.scan(block, x, w, **options)[0] ** 2).mean()

    return jax.value_and_grad(loss)


STEP = make_step()


def arguments(length, width, rows, dtype):
    return jax.ShapeDtypeStruct((length, 2, width, width), dtype), jax.ShapeDtypeStruct((rows, width), dtype)


def small_arguments(length):
    """Arguments of a step that runs here."""
    shapes = arguments(length, 16, 256, "float32")
    return tuple(jnp.cos(jnp.arange(np.prod(s.shape), dtype=jnp.float32)).reshape(s.shape) / 4 for s in shapes)


def held_by(planner, plan):
    """The plan as users have it."""
    return planner.as_plan(planner.measure(plan))


def assert_applied(planner, plan, args):
    """The plan's step computes the step's bits, op by op."""
    expected = run_one_by_one(jax.make_jaxpr(STEP)(*args), *args)
    for one, other in zip(expected, run_one_by_one(rewrite(planner.traced, plan).jaxpr, *args), strict=True):
        np.testing.assert_array_equal(one, other)


def assert_saved_loaded_and_shown(planner, plan, path, *, shown, **without):
    """A plan stays itself in a file, is told from one with other loops, and says in words what it does to them."""
    held = held_by(planner, plan)
    held.save(path / "plan.toml")
    assert jaxckpt.load_plan(path / "plan.toml") == held
    text = render_text(plan_report(held))
    assert all(words in text for words in shown)
    whole = replace(plan, **without)
    assert whole != plan
    assert digest(whole) != digest(plan)


def assert_refused(planner, plan, args, match, **wrong):
    """A plan is not applied to other arguments, to another step, nor with other turns."""
    held, (w, x) = held_by(planner, plan), args
    with pytest.raises(PlanMismatchError, match="other arguments"):
        held.apply(STEP)(w[:-1], x)
    with pytest.raises(PlanMismatchError, match="another step"):
        held.apply(jax.value_and_grad(lambda w, x: STEP(w, x)[0] * 2))(w, x)
    with pytest.raises(PlanMismatchError, match=match):
        replace(held, **wrong).apply(STEP)(w, x)
