"""Solvers: functions from a problem to a plan.

Read in this order: `offloading` and `problem` (the input), `no_recompute` and `full_recompute` (the two extremes),
`stages` (where to cut the forward pass), `optimal` (the planner's own solver, by integer programming), `policy_plan`
(the plan of a policy), `strategy` (solvers by name, with an option), `baselines` (methods from the literature).
"""

from collections.abc import Mapping
from types import MappingProxyType

from jaxckpt.ir import GraphPlan
from jaxckpt.solve.baselines import BASELINES
from jaxckpt.solve.full_recompute import solve_full
from jaxckpt.solve.no_recompute import solve_none
from jaxckpt.solve.offloading import Offloading
from jaxckpt.solve.optimal.solver import OptimalSolver, solve_optimal
from jaxckpt.solve.policy_plan import PolicyPlan, plan_from_policy, required_decisions, saved_collectives
from jaxckpt.solve.problem import Problem, unaliased_output_bytes
from jaxckpt.solve.stages import boundaries
from jaxckpt.solve.strategy import BudgetSolver, Solver, Strategy, StrategySolver, strategy_named

STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        "optimal": Strategy(
            solver=Solver(solve_within=solve_optimal),
            keeps="the values whose loss would cost most time, by integer programme within the budget",
            good="any model at any budget",
            source="ours; compare Jain et al. 2020 and Zhao et al. 2023",
        ),
        "none": Strategy(
            solver=Solver(solve=solve_none),
            keeps="everything: the step as it was written",
            good="models that fit",
            source="the compiler",
        ),
        "full": Strategy(
            solver=Solver(solve=solve_full),
            keeps="what crosses from stage to stage of the cut with the smallest peak",
            good="the least memory without further thought; `jax.checkpoint` around each block",
            source="Chen et al. 2016, algorithm 1",
        ),
        **BASELINES,
    }
)
"""Strategies by name, without option."""


def solve(problem: Problem, strategy: str = "optimal", *, temp_budget_bytes: int | None = None) -> GraphPlan:
    """Solves a problem with a named strategy.

    Args:
      problem: The step with its costs.
      strategy: A name of `STRATEGIES`, with an option after a colon where the strategy takes one ("every:4").
      temp_budget_bytes: Budget of temporaries, bytes per device, for strategies that depend on one; None for no limit.

    Raises:
      UnknownStrategyError: No strategy has that name, or the strategy takes no such option.
    """
    return named_strategy(strategy)(problem, temp_budget_bytes)


def named_strategy(strategy: str) -> Solver:
    """The solver of a strategy's name.

    Raises:
      UnknownStrategyError: No strategy has that name, or the strategy takes no such option.

    Example:
      >>> named_strategy("every:4").depends_on_budget, named_strategy("mincut:ilp").depends_on_budget
      (False, True)
    """
    return strategy_named(strategy, STRATEGIES)


__all__ = [
    "STRATEGIES",
    "BudgetSolver",
    "Offloading",
    "OptimalSolver",
    "PolicyPlan",
    "Problem",
    "Solver",
    "Strategy",
    "StrategySolver",
    "boundaries",
    "named_strategy",
    "plan_from_policy",
    "required_decisions",
    "saved_collectives",
    "solve",
    "solve_full",
    "solve_none",
    "solve_optimal",
    "unaliased_output_bytes",
]
