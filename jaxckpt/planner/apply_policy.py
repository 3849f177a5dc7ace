"""Carries a policy, and the policies of marks, out on a step; without a budget and without a compiler."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

from jaxckpt import ir
from jaxckpt._errors import PolicyError
from jaxckpt.linter import POLICY_ERROR_LINTS, lint_traced, raise_on_errors
from jaxckpt.machine import Target
from jaxckpt.policy import Policy, as_policy
from jaxckpt.rewrite import PlannedFunction, apply_decided
from jaxckpt.solve import Problem, plan_from_policy
from jaxckpt.trace import Traced

_Arguments = ParamSpec("_Arguments")
_Results = TypeVar("_Results")
_RATES = Target("h200").rates
"""A policy's stages depend on bytes; seconds only break ties."""


def apply(
    step: Callable[_Arguments, _Results],
    policy: Policy | str | Path | None = None,
    *,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
) -> PlannedFunction[_Arguments, _Results]:
    """The step rewritten by a policy. Nothing is compiled, and there is no budget.

    Args:
      step: Loss, gradient and, if there is one, the update: a function, plain or jitted.
      policy: A policy, its path, or the name of a ready policy; None for only the policies of marks in the step.
      donate_argnums: Positions whose memory the results may take when the function is called outside `jax.jit`.
      static_argnums: Positions that are not traced.

    Returns:
      A function of the same signature and results. Wrap it in `jax.jit`. The policy is applied when the function is
      called, once for each kind of arguments. If it shards values over a mesh, under a `jax.jit` whose trace names no
      mesh, then the policy is applied when the jit is lowered, with the shardings of the jit's arguments.

    Raises:
      PolicyError: There is no such policy; or, when called: a rule has no effect in this step. The message has each
        finding of `jaxckpt.lint` with its remedy.
      NoGradientError, ArgumentError: When called: as `jaxckpt.plan`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> frugal = apply(step, Policy(default="recompute"))
      >>> bool(jnp.allclose(frugal(jnp.eye(4), jnp.ones((2, 4))), step(jnp.eye(4), jnp.ones((2, 4)))))
      True
    """
    chosen = as_policy(policy)

    def decide(traced: Traced) -> ir.GraphPlan:
        try:
            return plan_from_policy(Problem(graph=traced.graph, rates=_RATES), chosen).plan
        except PolicyError:
            raise_on_errors(lint_traced(traced, policy=chosen, lints=POLICY_ERROR_LINTS))
            raise

    return apply_decided(step, decide, donate_argnums=donate_argnums, static_argnums=static_argnums)
