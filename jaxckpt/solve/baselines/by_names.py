"""Policies that everybody knows, as strategies: products, products with weights, and values that have a name.

They are the ready policies `dots` and `dots_no_batch`, and JAX's `save_only_these_names`, carried over to the step as
any policy is. Stages are those of full recomputation.

Source: `jax.checkpoint_policies.dots_saveable`, `dots_with_no_batch_dims_saveable`, `save_only_these_names`.
Read after `jaxckpt.solve.policy_plan`.
"""

from dataclasses import replace

from jaxckpt.ir import GraphPlan, Save
from jaxckpt.policy import Match, Policy, Rule, load_policy
from jaxckpt.solve.policy_plan import plan_from_policy
from jaxckpt.solve.problem import Problem


def solve_dots(problem: Problem) -> GraphPlan:
    """Keeps what every matrix product and convolution makes."""
    return _followed(problem, _with_optional_rules(load_policy("dots")))


def solve_dots_no_batch(problem: Problem) -> GraphPlan:
    """Keeps what products without batch dimensions make: those of activations with weights."""
    return _followed(problem, _with_optional_rules(load_policy("dots_no_batch")))


def solve_names(problem: Problem, names: str = "*") -> GraphPlan:
    """Keeps the values that `checkpoint_name` names.

    Args:
      problem: The step; its budget is not looked at.
      names: Glob on the names; "{a,b}" means either.

    Raises:
      PolicyError: No value has such a name.
    """
    rule = Rule(match=Match(name=names), decision=Save())
    return _followed(problem, Policy(name="names", default="recompute", rules=(rule,)))


def _followed(problem: Problem, policy: Policy) -> GraphPlan:
    plan = plan_from_policy(problem, policy).plan
    return (
        problem.plan({**plan.decisions, **problem.required}, plan.stages, plan.strategy) if problem.required else plan
    )


def _with_optional_rules(policy: Policy) -> Policy:
    return replace(policy, rules=tuple(replace(rule, optional=True) for rule in policy.rules))
