"""A strategy is a solver under the name that `strategy=` takes, with an option behind a colon where it has one.

"every" keeps the boundary of every second stage, "every:4" that of every fourth; "mincut:ilp" picks by integer
programme. `strategy_named` reads such a text, here and nowhere else. Strategies that read the problem's budget are
asked again by the planner when the compiler finds their plan too large; the others have one plan for a step.

Read after `problem`; the table is `jaxckpt.solve.STRATEGIES`.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NoReturn

from jaxckpt._errors import UnknownStrategyError, closest_names, did_you_mean
from jaxckpt.ir import GraphPlan
from jaxckpt.solve.no_recompute import solve_none
from jaxckpt.solve.problem import Problem

Sweep = Callable[[Problem], Iterable[GraphPlan]]
"""Plans of one step from little memory to much, whatever the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solver:
    """A solver that needs no more than a problem; it says one of `solve` and `sweep`.

    Attributes:
      solve: From a problem to a plan.
      sweep: From a problem to many plans, of which the cheapest within the budget is taken.
      reads_budget: Whether what `solve` gives depends on the problem's budget.
      named: The text that named it.
    """

    solve: Callable[[Problem], GraphPlan] | None = None
    sweep: Sweep | None = None
    reads_budget: bool = False
    named: str = ""

    @property
    def budgeted(self) -> bool:
        """Whether another budget may give another plan."""
        return self.reads_budget or self.sweep is not None

    def __call__(self, problem: Problem) -> GraphPlan:
        """The plan, under the name of the strategy."""
        if self.sweep is not None:
            return cheapest(self.swept(problem), problem.temp_budget_bytes)
        assert self.solve is not None, "a solver solves or sweeps"
        return self._signed(self.solve(problem))

    def swept(self, problem: Problem) -> tuple[GraphPlan, ...]:
        """All plans of a sweep, each once, under the name of the strategy."""
        assert self.sweep is not None, "only sweeps have many plans"
        return tuple(dict.fromkeys(map(self._signed, self.sweep(problem))))

    def _signed(self, plan: GraphPlan) -> GraphPlan:
        return replace(plan, strategy=self.named) if plan.decisions else plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A row of the table of strategies.

    Attributes:
      solver: What it does without an option.
      keeps: What stays in memory between forward and backward.
      good: When to take it.
      source: The paper or the program that it comes from.
      option: What may stand behind the colon; "" where nothing may.
      read: From that text to a solver; it raises `ValueError` with what is needed.
    """

    solver: Solver
    keeps: str
    good: str
    source: str
    option: str = ""
    read: Callable[[str], Solver] | None = None


def strategy_named(text: str, strategies: Mapping[str, Strategy]) -> Solver:
    """The solver that a text such as "every:4" means.

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
        return replace(strategy.solver, named=text)
    if strategy.read is None:
        _refuse_option(text, name, f"no option: strategy={name!r}", "")
    try:
        return replace(strategy.read(option), named=text)
    except ValueError as error:
        _refuse_option(text, name, f"{name}:OPTION, where OPTION is {strategy.option}", str(error))


def cheapest(plans: Iterable[GraphPlan], temp_budget_bytes: int | None) -> GraphPlan:
    """The fastest plan within a budget; where none is, the one of least memory.

    Args:
      plans: At least one, with predictions.
      temp_budget_bytes: What temporaries may take; None for no limit.
    """
    made = tuple(plans)
    fitting = [p for p in made if temp_budget_bytes is None or p.predicted.temp_bytes <= temp_budget_bytes]
    if fitting:
        return min(fitting, key=lambda plan: (plan.predicted.step_s, plan.predicted.temp_bytes))
    return min(made, key=lambda plan: (plan.predicted.temp_bytes, plan.predicted.step_s))


def within(problem: Problem, temp_budget_bytes: int | None) -> Problem:
    """The same problem with another budget; what was computed of it is shared, none of it depends on the budget."""
    asked = copy.copy(problem)
    object.__setattr__(asked, "temp_budget_bytes", temp_budget_bytes)
    return asked


class StrategySolver:
    """A strategy as the planner asks it: budget after budget, like `OptimalSolver`.

    Args:
      problem: The step; its own budget is not looked at.
      solver: What to ask.
    """

    def __init__(self, problem: Problem, solver: Solver):
        self.problem = problem
        self._solver = solver

    def solve(self, temp_budget_bytes: int | None, *, allow_empty: bool = True) -> GraphPlan:
        """The strategy's plan; one that reads the budget leaves the step as it is where that fits and is faster.

        Args:
          temp_budget_bytes: What temporaries may take; None for no limit.
          allow_empty: True if the empty plan, the step as written, may be the answer.
        """
        plan = self._asked(temp_budget_bytes)
        if self._solver.budgeted and allow_empty and self.problem.allows_empty_plan:
            return cheapest((self.empty_plan, plan), temp_budget_bytes)
        return plan

    @cached_property
    def empty_plan(self) -> GraphPlan:
        """The step as it is."""
        return solve_none(self.problem)

    @cached_property
    def min_memory_plans(self) -> tuple[GraphPlan, ...]:
        """The plan of least predicted memory that it knows."""
        return (self._asked(0),)

    @cached_property
    def _swept(self) -> tuple[GraphPlan, ...]:
        return self._solver.swept(self.problem)

    @cached_property
    def _only(self) -> GraphPlan:
        return self._solver(self.problem)

    def _asked(self, temp_budget_bytes: int | None) -> GraphPlan:
        if self._solver.sweep is not None:
            return cheapest(self._swept, temp_budget_bytes)
        if not self._solver.budgeted:
            return self._only
        return self._solver(within(self.problem, temp_budget_bytes))


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
