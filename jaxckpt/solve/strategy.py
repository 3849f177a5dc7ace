"""Strategies: solvers as functions, and as the planner uses them for several budgets.

The planner solves again with a lower budget if the compiled plan is too large and the strategy depends on the budget;
all others have one plan for a step. Read after `problem`; the table is `jaxckpt.solve.STRATEGIES`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from jaxckpt.ir import GraphPlan
from jaxckpt.solve.problem import Problem, solve_none

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

    def forget_budgets(self) -> None:
        """Forgets the plans of earlier budgets, so that the next answers do not depend on earlier questions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solver:
    """A strategy as a function; exactly one of `solve`, `solve_within` and `sweep` is given.

    Attributes:
      solve: From a problem to a plan; no budget is read.
      solve_within: From a problem and a budget of temporaries in bytes, or None for no limit, to a plan.
      sweep: From a problem to many plans, of which the fastest within the budget is taken.
      option: The texts that may follow the strategy's name and a colon; "" if none may.
      read: From such a text to a solver; raises `ValueError` with the reason if the text is not valid.
      name: The text that named the strategy.
    """

    solve: Callable[[Problem], GraphPlan] | None = None
    solve_within: Callable[[Problem, int | None], GraphPlan] | None = None
    sweep: Sweep | None = None
    option: str = ""
    read: Callable[[str], "Solver"] | None = None
    name: str = ""

    @property
    def depends_on_budget(self) -> bool:
        """True if another budget may give another plan."""
        return self.solve is None

    def __call__(self, problem: Problem, temp_budget_bytes: int | None = None) -> GraphPlan:
        """The plan, under the name of the strategy."""
        if self.solve_within is not None:
            return self._with_name(self.solve_within(problem, temp_budget_bytes))
        return cheapest(self.sweep_plans(problem), temp_budget_bytes)

    def sweep_plans(self, problem: Problem) -> tuple[GraphPlan, ...]:
        """All distinct plans of a strategy that reads no budget, under the name of the strategy."""
        if self.solve is not None:
            return (self._with_name(self.solve(problem)),)
        assert self.sweep is not None, "a solver solves, solves within a budget, or sweeps"
        return tuple(dict.fromkeys(map(self._with_name, self.sweep(problem))))

    def _with_name(self, plan: GraphPlan) -> GraphPlan:
        return replace(plan, strategy=self.name) if plan.decisions else plan


def cheapest(plans: Iterable[GraphPlan], temp_budget_bytes: int | None) -> GraphPlan:
    """The fastest of at least one plan within a budget of temporaries; if none fits, the plan of least memory."""
    plans = tuple(plans)
    fitting = [p for p in plans if temp_budget_bytes is None or p.predicted.temp_bytes <= temp_budget_bytes]
    if fitting:
        return min(fitting, key=lambda plan: (plan.predicted.step_s, plan.predicted.temp_bytes))
    return min(plans, key=lambda plan: (plan.predicted.temp_bytes, plan.predicted.step_s))


class StrategySolver:
    """A strategy as a `BudgetSolver`; plans that do not depend on the budget are computed once."""

    def __init__(self, problem: Problem, solver: Solver):
        self.problem = problem
        self._solver = solver

    def solve(self, temp_budget_bytes: int | None, *, allow_empty: bool = True) -> GraphPlan:
        """The strategy's plan; for a strategy that depends on the budget, the empty plan if it fits and is faster."""
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

    def forget_budgets(self) -> None:
        """Does nothing: no answer depends on earlier budgets."""

    @cached_property
    def _swept(self) -> tuple[GraphPlan, ...]:
        return self._solver.sweep_plans(self.problem)

    def _plan_within(self, temp_budget_bytes: int | None) -> GraphPlan:
        if self._solver.solve_within is not None:
            return self._solver(self.problem, temp_budget_bytes)
        return cheapest(self._swept, temp_budget_bytes)
