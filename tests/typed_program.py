"""A user's program with every public name, for type checkers: `make lint` runs mypy over it in full strictness.

No test runs it. It is here because a name that type checkers take for a module, or for `Any`, breaks the programs of
users and no program of ours: `assert_type` fails where a type is lost.
"""

from collections.abc import Callable
from pathlib import Path
from typing import assert_type

import jax
import jax.numpy as jnp

import jaxckpt
import jaxckpt.planner

Weights = dict[str, jax.Array]


@jaxckpt.scope
def block(x: jax.Array) -> jax.Array:
    return jaxckpt.name(jnp.tanh(x), "hidden")


@jaxckpt.scope(policy="dots", name="head")
def head(x: jax.Array) -> jax.Array:
    return x


def loss(weights: Weights, x: jax.Array) -> jax.Array:
    with jaxckpt.scope(name="body"):
        hidden = block(x @ weights["in"])
    return jnp.sum(head(hidden))


def step(weights: Weights, x: jax.Array) -> Weights:
    gradients = jax.grad(loss)(weights, x)
    return {key: weights[key] - gradients[key] for key in weights}


def step_of_batch(batch: int) -> tuple[Callable[..., Weights], tuple[object, ...]]:
    return step, ({"in": jnp.ones((4, 4))}, jnp.ones((batch, 4)))


def planning(weights: Weights, x: jax.Array, path: Path) -> None:
    options = jaxckpt.PlanOptions(allow=("recompute", "offload"), offload=jaxckpt.Offloading(min_bytes=1))
    target = jaxckpt.Target("h200")
    plan = jaxckpt.plan(step, weights, x, budget="1GiB", target=target, options=options, progress=print)
    assert_type(plan, jaxckpt.Plan)
    assert_type(plan.apply(step)(weights, x), Weights)
    assert_type(plan.apply(step).lower(weights, x), jax.stages.Lowered)
    assert_type(jaxckpt.apply(step, "dots")(weights, x=x), Weights)
    plan.save(path)
    assert_type(jaxckpt.load_plan(path), jaxckpt.Plan)
    assert_type(jaxckpt.plan_once(lambda: plan), jaxckpt.Plan)
    whole = jaxckpt.Step(step, (weights, x), donate_argnums=0)
    assert_type(jaxckpt.load_or_plan(path, whole, budget="1GiB", target="h200"), jaxckpt.Plan)
    fast = jaxckpt.jit(step, budget="1GiB")
    assert_type(fast(weights, x), Weights)
    assert_type(fast.plan, jaxckpt.Plan | None)
    assert_type(fast.footprint, jaxckpt.Footprint | None)
    assert_type(fast.lower(weights, x), jax.stages.Lowered)
    assert_type(jaxckpt.jit(cache=False)(step)(weights, x), Weights)
    planner = jaxckpt.Planner(whole, target=target, max_compiles=2)
    assert_type(planner.plan(budget=0.5), jaxckpt.Plan)
    assert_type(planner.floor(), jaxckpt.Floor)
    assert_type(jaxckpt.pareto(whole, target="h200"), jaxckpt.Frontier)
    assert_type(jaxckpt.max_batch(step_of_batch, target="h200"), jaxckpt.BatchSearch)
    try:
        planner.plan(budget=1)
    except jaxckpt.InfeasibleBudgetError as error:
        assert_type(error.minimum_bytes, int)
        assert_type(error.minimum_measured, bool)


def measuring(weights: Weights, x: jax.Array, path: Path) -> None:
    footprint = jaxckpt.footprint(step, weights, x, target="h200")
    assert_type(footprint, jaxckpt.Footprint)
    footprint.save(path)
    assert_type(jaxckpt.load_footprint(path), jaxckpt.Footprint)
    jaxckpt.draw(footprint, path.with_suffix(".html"))
    assert_type(jaxckpt.compare({"a": footprint, "b": path}), jaxckpt.Comparison)
    assert_type(jaxckpt.verdicts(step, weights, x, target="h200"), jaxckpt.Verdicts)
    assert_type(jaxckpt.verify(step, jaxckpt.apply(step), weights, x), jaxckpt.Verification)
    assert_type(jaxckpt.analyze(step, weights, x), jaxckpt.planner.Analysis)
    assert_type(jaxckpt.calibrate(seconds=1), jaxckpt.Calibration)
    assert_type([status.name for status in jaxckpt.targets()], list[str])
    assert_type([each.forward_s for each in jaxckpt.timed_scopes(step, weights, x)], list[float])
    jaxckpt.testing.assert_fits(step, weights, x, budget="1GiB", target="h200")
    whole = jaxckpt.Step(step, (weights,), kwargs={"x": x})
    assert_type(jaxckpt.testing.assert_fits(whole, budget="1GiB", target="h200"), jaxckpt.Footprint)
    assert_type([each.ops for each in jaxckpt.timed_scopes(whole)], list[int])


def policies(weights: Weights, x: jax.Array, path: Path) -> None:
    assert_type(jaxckpt.policies(), tuple[str, ...])
    policy = jaxckpt.load_policy(path)
    assert_type(policy, jaxckpt.Policy)
    assert_type(jaxckpt.explain(step, weights, x, policy=policy), jaxckpt.Explanation)
    findings = jaxckpt.lint(step, weights, x, policy=policy)
    assert_type(findings, jaxckpt.Findings)
    assert_type(findings.findings, tuple[jaxckpt.Finding, ...])
    assert_type(jaxckpt.read_policy({}, "maxtext"), jaxckpt.Reading)
    few = jaxckpt.chunked(block, chunks=4)
    few(x)


def simulating() -> None:
    chain = jaxckpt.dynamic.unit_chain(8)
    assert_type(jaxckpt.dynamic.simulate(chain, budget=4), jaxckpt.dynamic.Simulation)


assert_type(jaxckpt.__version__, str)
