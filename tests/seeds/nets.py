"""Small nets with regions in them, and what a policy makes of their steps."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

import jaxckpt
from jaxckpt import Policy
from jaxckpt.policy import Regions
from tests.annotate.residuals import count

X = jnp.linspace(-1.0, 1.0, 32).reshape(8, 4)
W = jnp.linspace(0.1, 0.9, 16).reshape(4, 4)


def regions(scope: str = "*", *, rules: tuple[Any, ...] = (), **switches: Any) -> Policy:
    """A policy that computes the regions of a scope again, and keeps the rest."""
    return Policy(rules=rules, default="save", regions=Regions(scope=scope, **switches))


def layers(depth: int = 3) -> Callable[..., Any]:
    """The gradient of a net of blocks, tanh(x @ w) and sin, each block a scope; by weights and input."""

    def loss(w: Any, x: Any) -> Any:
        for number in range(depth):
            with jax.named_scope(f"block_{number}"):
                x = jnp.sin(jnp.tanh(x @ w)) @ w
        return (x**2).sum()

    return jax.value_and_grad(loss, argnums=(0, 1))


def counted(step: Callable[..., Any], policy: Policy | None, *args: Any) -> Counter[str]:
    """How many equations of each primitive the step has, under a policy if there is one."""
    return count(step if policy is None else jaxckpt.apply(step, policy), *args)


def again(step: Callable[..., Any], policy: Policy, *args: Any) -> Counter[str]:
    """How many equations of each primitive a policy adds; barriers are no work."""
    more = counted(step, policy, *args)
    more.subtract(counted(step, None, *args))
    return Counter({name: times for name, times in more.items() if times > 0 and name not in _NO_WORK})


def saved(step: Callable[..., Any], policy: Policy, *args: Any) -> list[str]:
    """Scope and primitive of each array that is kept for the backward because the policy says or needs it."""
    explained = jaxckpt.explain(step, *args, policy=policy).values
    return [f"{e.value.scope}/{e.value.primitive}" for e in explained if type(e.carried_out).__name__ == "Save"]


def equations(function: Callable[..., Any], *args: Any) -> Iterator[Any]:
    """The equations of a function in order, those of calls and bodies in their place."""

    def walk(jaxpr: Any) -> Iterator[Any]:
        for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
            yield eqn
            for inner in jex.jaxprs_in_params(eqn.params):
                yield from walk(inner)

    yield from walk(jax.make_jaxpr(function)(*args))


def exchanged(function: Callable[..., Any], *args: Any) -> Counter[str]:
    """How many arrays the collectives of each kind of the compiled function take; compilers put several into one."""
    text = jax.jit(function).lower(*args).compile().as_text()
    found: Counter[str] = Counter()
    for kind, operands in re.findall(r" (all-reduce|all-gather|reduce-scatter|all-to-all)(?:-start)?\(([^)]*)\)", text):
        found[kind] += operands.count("%")
    return found


_NO_WORK = {"optimization_barrier", "jit", "pjit", "closed_call", "device_put"}
