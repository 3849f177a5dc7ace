"""JAX's policies as strategies: products, products with weights, and values that have a name.

Stages are those of full recomputation. Source: `jax.checkpoint_policies.dots_saveable`,
`dots_with_no_batch_dims_saveable`, `save_only_these_names`. Read after `jaxckpt.solve.policy_plan`.
"""

from dataclasses import replace

from jaxckpt.ir import GraphPlan, Save
from jaxckpt.policy import Match, Policy, Rule, load_policy
from jaxckpt.solve.policy_plan import plan_from_policy
from jaxckpt.solve.problem import Problem


def solve_shipped(problem: Problem, *, policy: str) -> GraphPlan:
    """Follows a policy that comes with jaxckpt, whose rules need not match anything."""
    shipped = load_policy(policy)
    rules = tuple(replace(rule, optional=True) for rule in shipped.rules)
    return _followed(problem, replace(shipped, rules=rules))


def solve_names(problem: Problem, names: str = "*") -> GraphPlan:
    """Keeps the values that `checkpoint_name` names, by a glob; "{a,b}" means either."""
    rule = Rule(match=Match(name=names), decision=Save())
    return _followed(problem, Policy(name="names", default="recompute", rules=(rule,)))


def _followed(problem: Problem, policy: Policy) -> GraphPlan:
    plan = plan_from_policy(problem, policy).plan
    if not problem.required:
        return plan
    return problem.plan({**plan.decisions, **problem.required}, plan.stages, plan.strategy)
