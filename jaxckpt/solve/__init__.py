"""Solvers: each a file, each from a problem to a plan.

Read in this order: `offloading` and `problem` (what is asked), `none` and `full` (the two ends), `stages` (where to
cut), `labels` and `alone` (each stage by itself), `options` (what a stage can keep), `hosted` (what of it may wait on
the host), `windows` (what is alive meanwhile), `compose` (one option each), `polish` (one change at a time), `copies`
(how long copies to the host may take), `optimal` (all together); `policies` (what a policy says), `strategy` (solvers
by name, with an option), `peers` (what others do).
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
from jaxckpt.solve.strategy import Solver, Strategy, StrategySolver, strategy_named

STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        "optimal": Strategy(
            solver=Solver(solve=solve_optimal, reads_budget=True),
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
"""Strategies by the name that `strategy=` takes, before the colon of an option."""


def solve(problem: Problem, strategy: str = "optimal") -> GraphPlan:
    """Solves a problem with a named strategy.

    Args:
      problem: The step, its costs, and the budget where the strategy reads one.
      strategy: A name of `STRATEGIES`, and an option behind a colon where it takes one ("every:4").

    Raises:
      UnknownStrategyError: No solver has that name, or it takes no such option.
    """
    return named_strategy(strategy)(problem)


def named_strategy(strategy: str) -> Solver:
    """The solver that a text means.

    Raises:
      UnknownStrategyError: No solver has that name, or it takes no such option.

    Example:
      >>> named_strategy("every:4").budgeted, named_strategy("mincut:ilp").budgeted
      (False, True)
    """
    return strategy_named(strategy, STRATEGIES)


__all__ = [
    "STRATEGIES",
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
