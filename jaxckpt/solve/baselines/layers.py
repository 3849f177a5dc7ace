"""Whole layers of the model are recomputed: `jax.checkpoint` around each of them, with one of JAX's policies or none.

Layers are found by their names, else by structure, else they are the bodies of loops (`jaxckpt.policy.model_layers`).
For other steps `full` finds blocks where few bytes cross.

Source: `flax.linen.remat`, `jax.checkpoint` and its policies. Read after `jaxckpt.solve.policy_plan`.
"""

from dataclasses import replace
from functools import partial

from jaxckpt._errors import PolicyError
from jaxckpt.ir import GraphPlan, Recompute
from jaxckpt.policy import Regions, layers_of_model, load_policy
from jaxckpt.solve.policy_plan import follow
from jaxckpt.solve.problem import Problem
from jaxckpt.solve.strategy import Solver

SAVED = ("nothing", "dots", "dots_no_batch", "elementwise_recomputed")
"""Shipped policies that say which values of a layer are saved."""


def read_option(text: str) -> Solver:
    """The solver for one of `SAVED`; raises `ValueError` for another text."""
    if text not in SAVED:
        raise ValueError(f"{text!r} is none of {', '.join(SAVED)}")
    return Solver(solve=partial(solve_layers, saved=text))


def solve_layers(problem: Problem, saved: str = "nothing") -> GraphPlan:
    """Saves the inputs of each layer, and inside it what a policy saves.

    Raises:
      PolicyError: The forward pass has no layers, and no loop whose gradient is another loop.
    """
    if layers_of_model(problem.graph) is None:
        raise PolicyError(
            "solve(strategy='layers') finds no layers.",
            got="no two scopes of the forward pass that differ in one number alone, no ops that repeat, and no loop "
            "whose gradient is another loop",
            needed='scopes such as "block_0" and "block_1": names of modules, or jax.named_scope around each layer',
            advice='strategy="full", which finds blocks by structure',
        )
    policy = load_policy(saved)
    rules = tuple(replace(rule, optional=True) for rule in policy.rules if not isinstance(rule.decision, Recompute))
    regions = Regions(scope="", segment=1)
    return follow(problem, replace(policy, name="layers", default="save", rules=rules, regions=regions))
