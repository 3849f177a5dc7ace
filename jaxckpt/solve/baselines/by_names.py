"""JAX's policies as strategies: products, products with weights, and values that have a name.

Stages are those of full recomputation. Source: `jax.checkpoint_policies.dots_saveable`,
`dots_with_no_batch_dims_saveable`, `save_only_these_names`. Read after `jaxckpt.solve.policy_plan`.
"""

from dataclasses import replace

from jaxckpt.ir import GraphPlan, Save
from jaxckpt.policy import Match, Policy, Rule, load_policy
from jaxckpt.solve.policy_plan import plan_from_policy
from jaxckpt.solve.problem import Problem


def solve_dots(problem: Problem) -> GraphPlan:
    """Keeps what every matrix product and convolution makes."""
    return _followed_by_name(problem, "dots")


def solve_dots_no_batch(problem: Problem) -> GraphPlan:
    """Keeps what products without batch dimensions make: those of activations with weights."""
    return _followed_by_name(problem, "dots_no_batch")


def solve_names(problem: Problem, names: str = "*") -> GraphPlan:
    """Keeps the values that `checkpoint_name` names, by a glob; "{a,b}" means either."""
    rule = Rule(match=Match(name=names), decision=Save())
    return follow(problem, Policy(name="names", default="recompute", rules=(rule,)))


def follow(problem: Problem, policy: Policy) -> GraphPlan:
    """The plan of a policy, with all required decisions."""
    plan = plan_from_policy(problem, policy).plan
    if not problem.required:
        return plan
    return problem.plan({**plan.decisions, **problem.required}, plan.stages, plan.strategy)


def _followed_by_name(problem: Problem, name: str) -> GraphPlan:
    """The plan of a shipped policy, whose rules need not match anything."""
    policy = load_policy(name)
    return follow(problem, replace(policy, rules=tuple(replace(rule, optional=True) for rule in policy.rules)))
