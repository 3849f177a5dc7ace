"""Solvers: functions from a problem to a plan.

Read in this order: `problem` (the input), `stages` (where to cut the forward pass), `full_recompute` (only boundaries
are saved), `optimal` (the planner's own solver, by integer programming), `policy_plan` (the plan of a policy),
`strategy` (solvers as functions), `baselines` (methods from the literature).
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NoReturn

from jaxckpt._errors import UnknownStrategyError, closest_names, did_you_mean
from jaxckpt.ir import GraphPlan
from jaxckpt.solve.baselines import BASELINES
from jaxckpt.solve.full_recompute import solve_full as solve_full
from jaxckpt.solve.optimal.solver import OptimalSolver as OptimalSolver, solve_optimal as solve_optimal
from jaxckpt.solve.policy_plan import (
    PolicyPlan as PolicyPlan,
    plan_from_policy as plan_from_policy,
    required_decisions as required_decisions,
    saved_collectives as saved_collectives,
)
from jaxckpt.solve.problem import (
    Offloading as Offloading,
    Problem as Problem,
    solve_none as solve_none,
    unaliased_output_bytes as unaliased_output_bytes,
)
from jaxckpt.solve.stages import boundaries as boundaries
from jaxckpt.solve.strategy import (
    BudgetSolver as BudgetSolver,
    Solver as Solver,
    StrategySolver as StrategySolver,
)

STRATEGIES: Mapping[str, Solver] = MappingProxyType(
    {
        "optimal": Solver(solve_within=solve_optimal),
        "none": Solver(solve=solve_none),
        "full": Solver(solve=solve_full),
        **BASELINES,
    }
)
"""Strategies by name, without option."""


def solve(problem: Problem, strategy: str = "optimal", *, temp_budget_bytes: int | None = None) -> GraphPlan:
    """Solves a problem with a named strategy; the budget, in bytes per device, is for strategies that depend on one."""
    return named_strategy(strategy)(problem, temp_budget_bytes)


def named_strategy(strategy: str) -> Solver:
    """The solver of a strategy's name, with an option after a colon where the strategy takes one.

    "every" saves the boundary of every second stage, "every:4" that of every fourth.

    Raises:
      UnknownStrategyError: No strategy has that name, or the strategy takes no such option.

    Example:
      >>> named_strategy("every:4").depends_on_budget, named_strategy("mincut:ilp").depends_on_budget
      (False, True)
    """
    name, colon, option = str(strategy).partition(":")
    if name not in STRATEGIES:
        _refuse(strategy, name)
    row = STRATEGIES[name]
    if not colon:
        return replace(row, name=strategy)
    if row.read is None:
        _refuse_option(strategy, name, f"no option: strategy={name!r}", "")
    try:
        return replace(row.read(option), name=strategy)
    except ValueError as error:
        _refuse_option(strategy, name, f"{name}:OPTION, where OPTION is {row.option}", f": {error}")


def _refuse(text: str, name: str) -> NoReturn:
    (suggested, *_) = (*closest_names(name, STRATEGIES), "optimal")
    raise UnknownStrategyError(
        f"solve(strategy={text!r}) names no solver.",
        got=repr(text),
        needed=f"one of {', '.join(map(repr, STRATEGIES))}{did_you_mean(name, STRATEGIES)}",
        advice=f'strategy="{suggested}"',
        strategy=text,
    )


def _refuse_option(text: str, name: str, needed: str, why: str) -> NoReturn:
    raise UnknownStrategyError(
        f"solve(strategy={text!r}) has an option that {name!r} does not take.",
        got=f"{text!r}{why}",
        needed=needed,
        advice=f'strategy="{name}"',
        strategy=text,
    )
