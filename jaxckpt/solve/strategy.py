"""Strategies: solvers under the names that `strategy=` takes, with an option after a colon where one is allowed.

"every" saves the boundary of every second stage, "every:4" that of every fourth; "mincut:ilp" solves its knapsack by
integer programming. `strategy_named` is the only parser of such texts. The planner solves again with a lower budget if
the compiled plan is too large and the strategy depends on the budget; all others have one plan for a step.

Read after `problem`; the table is `jaxckpt.solve.STRATEGIES`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NoReturn, Protocol

from jaxckpt._errors import UnknownStrategyError, closest_names, did_you_mean
from jaxckpt.ir import GraphPlan
from jaxckpt.solve.no_recompute import solve_none
from jaxckpt.solve.problem import Problem

Sweep = Callable[[Problem], Iterable[GraphPlan]]
"""Plans of one step from little memory to much, for no particular budget."""


class BudgetSolver(Protocol):
    """A solver of one step for any number of budgets, as the planner uses it."""

    @property
    def problem(self) -> Problem:
        """The step."""

    @property
    def empty_plan(self) -> GraphPlan:
        """The plan without decisions: the step as written."""

    @property
    def min_memory_plans(self) -> tuple[GraphPlan, ...]:
        """Plans of about the least predicted memory, for a budget that no other plan meets."""

    def solve(self, temp_budget_bytes: int | None, *, allow_empty: bool = True) -> GraphPlan:
        """The fastest plan within a budget of temporaries; if there is none, a plan of least memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solver:
    """A strategy as a function; exactly one of `solve`, `solve_within` and `sweep` is given.

    Attributes:
      solve: From a problem to a plan; no budget is read.
      solve_within: From a problem and a budget of temporaries in bytes, or None for no limit, to a plan.
      sweep: From a problem to many plans, of which the fastest within the budget is taken.
      name: The text that named the strategy.
    """

    solve: Callable[[Problem], GraphPlan] | None = None
    solve_within: Callable[[Problem, int | None], GraphPlan] | None = None
    sweep: Sweep | None = None
    name: str = ""

    @property
    def depends_on_budget(self) -> bool:
        """True if another budget may give another plan."""
        return self.solve is None

    def __call__(self, problem: Problem, temp_budget_bytes: int | None = None) -> GraphPlan:
        """The plan, under the name of the strategy."""
        if self.sweep is not None:
            return cheapest(self.sweep_plans(problem), temp_budget_bytes)
        if self.solve_within is not None:
            return self._with_name(self.solve_within(problem, temp_budget_bytes))
        assert self.solve is not None, "a solver solves, solves within a budget, or sweeps"
        return self._with_name(self.solve(problem))

    def sweep_plans(self, problem: Problem) -> tuple[GraphPlan, ...]:
        """All distinct plans of a sweep, under the name of the strategy."""
        assert self.sweep is not None, "only sweeps have many plans"
        return tuple(dict.fromkeys(map(self._with_name, self.sweep(problem))))

    def _with_name(self, plan: GraphPlan) -> GraphPlan:
        return replace(plan, strategy=self.name) if plan.decisions else plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A row of the table of strategies.

    Attributes:
      solver: The solver without an option.
      keeps: The values that stay in memory between forward and backward, for the documentation.
      good: The models that the strategy is good for.
      source: The paper or the program that the strategy comes from.
      option: The texts that may follow the colon; "" if none may.
      read: From such a text to a solver; raises `ValueError` with the reason if the text is not valid.
    """

    solver: Solver
    keeps: str
    good: str
    source: str
    option: str = ""
    read: Callable[[str], Solver] | None = None


def strategy_named(text: str, strategies: Mapping[str, Strategy]) -> Solver:
    """The solver of a text such as "every:4".

    Args:
      text: A name, or a name and an option with a colon between them.
      strategies: The table.

    Raises:
      UnknownStrategyError: There is no such strategy, or it has no such option.
    """
    name, colon, option = text.partition(":")
    if name not in strategies:
        _refuse(text, strategies)
    strategy = strategies[name]
    if not colon:
        return replace(strategy.solver, name=text)
    if strategy.read is None:
        _refuse_option(text, name, f"no option: strategy={name!r}", "")
    try:
        return replace(strategy.read(option), name=text)
    except ValueError as error:
        _refuse_option(text, name, f"{name}:OPTION, where OPTION is {strategy.option}", str(error))


def cheapest(plans: Iterable[GraphPlan], temp_budget_bytes: int | None) -> GraphPlan:
    """The fastest plan within a budget; if none fits, the plan of least memory.

    Args:
      plans: At least one, with predictions.
      temp_budget_bytes: Budget of temporaries; None for no limit.
    """
    plans = tuple(plans)
    fitting = [p for p in plans if temp_budget_bytes is None or p.predicted.temp_bytes <= temp_budget_bytes]
    if fitting:
        return min(fitting, key=lambda plan: (plan.predicted.step_s, plan.predicted.temp_bytes))
    return min(plans, key=lambda plan: (plan.predicted.temp_bytes, plan.predicted.step_s))


class StrategySolver:
    """A strategy as a `BudgetSolver`; plans that do not depend on the budget are computed once.

    Args:
      problem: The step.
      solver: The strategy.
    """

    def __init__(self, problem: Problem, solver: Solver):
        self.problem = problem
        self._solver = solver

    def solve(self, temp_budget_bytes: int | None, *, allow_empty: bool = True) -> GraphPlan:
        """The strategy's plan; for a strategy that depends on the budget, the empty plan if it fits and is faster.

        Args:
          temp_budget_bytes: Budget of temporaries; None for no limit.
          allow_empty: True if the empty plan, the step as written, may be the answer.
        """
        plan = self._plan_within(temp_budget_bytes)
        if self._solver.depends_on_budget and allow_empty and self.problem.allows_empty_plan:
            return cheapest((self.empty_plan, plan), temp_budget_bytes)
        return plan

    @cached_property
    def empty_plan(self) -> GraphPlan:
        """The plan without decisions: the step as written."""
        return solve_none(self.problem)

    @cached_property
    def min_memory_plans(self) -> tuple[GraphPlan, ...]:
        """The strategy's plan of least predicted memory."""
        return (self._plan_within(0),)

    @cached_property
    def _swept(self) -> tuple[GraphPlan, ...]:
        return self._solver.sweep_plans(self.problem)

    @cached_property
    def _only(self) -> GraphPlan:
        return self._solver(self.problem)

    def _plan_within(self, temp_budget_bytes: int | None) -> GraphPlan:
        if self._solver.sweep is not None:
            return cheapest(self._swept, temp_budget_bytes)
        if not self._solver.depends_on_budget:
            return self._only
        return self._solver(self.problem, temp_budget_bytes)


def _refuse(text: str, strategies: Mapping[str, Strategy]) -> NoReturn:
    name = text.partition(":")[0]
    (suggested, *_) = (*closest_names(name, strategies, cutoff=0.5), "optimal")
    raise UnknownStrategyError(
        f"solve(strategy={text!r}) names no solver.",
        got=repr(text),
        needed=f"one of {', '.join(map(repr, strategies))}{did_you_mean(name, strategies, cutoff=0.5)}",
        advice=f'strategy="{suggested}"',
        strategy=text,
    )


def _refuse_option(text: str, name: str, needed: str, why: str) -> NoReturn:
    raise UnknownStrategyError(
        f"solve(strategy={text!r}) has an option that {name!r} does not take.",
        got=repr(text) + (f": {why}" if why else ""),
        needed=needed,
        advice=f'strategy="{name}"',
        strategy=text,
    )
