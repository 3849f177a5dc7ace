"""The cheapest plan that fits: integer programmes per distinct stage, composed exactly over the stages.

For a few cuts of the forward pass into stages: the options of each distinct stage, the windows in which stages are at
work, the best combination of options under the budget; then a replay of the whole plan, which has the last word.
What the composition misjudged is taken off the budget and composed again. Among the cuts the fastest plan that
fits is returned; where none fits, the one of least memory.

Read after `stages`, `options`, `windows`, `compose`. Compare Rockmate (Zhao et al. 2023), which solves blocks by
integer programming and composes them by rotor's dynamic programme.
"""

import sys
from collections.abc import Iterator
from functools import cached_property

from jaxckpt.ir import Plan
from jaxckpt.solve.compose import compose
from jaxckpt.solve.full import smallest_cuts
from jaxckpt.solve.none import solve_none
from jaxckpt.solve.options import Option, stage_options
from jaxckpt.solve.problem import Problem, decide
from jaxckpt.solve.stages import Stages, boundaries
from jaxckpt.solve.windows import Seen, look

_PROMISING = 1.5
"""Cuts whose boundaries alone take more than this times the smallest peak are not looked at."""
_TRIED = 2
"""How many cuts are tried for a budget."""
_ROUNDS = 4
"""How often a composition that the replay finds too large is made again with less."""

_Staged = tuple[Stages, tuple[tuple[Option, ...], ...], Seen]


class OptimalSolver:
    """Solves one step for any number of budgets; what does not depend on the budget is done once."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.unplanned = solve_none(problem)
        self.floors = tuple(sorted(smallest_cuts(problem, _PROMISING), key=lambda plan: len(plan.stages)))
        """For each promising cut the plan that keeps boundaries alone, by rising number of stages."""
        self.full = min(self.floors, key=lambda plan: plan.predicted.temp_bytes)
        """That of the smallest of them: what `solve_full` gives."""
        self._staged: dict[Stages, _Staged] = {}
        self._solved: dict[Plan, None] = {}
        """Plans for budgets so far: more memory never gives a slower plan."""

    def solve(self, temp_budget_bytes: int | None, *, unplanned: bool = True) -> Plan:
        """The fastest plan whose predicted temporaries fit, else the one of least memory.

        Args:
          temp_budget_bytes: What temporaries may take; None for no limit.
          unplanned: Whether the step as it is may be the answer.
        """
        unplanned = unplanned and self.problem.may_be_unplanned
        if unplanned and (temp_budget_bytes is None or self.unplanned.predicted.temp_bytes <= temp_budget_bytes):
            return self.unplanned
        plans = [self._composed(staged, temp_budget_bytes) for staged in self._within(temp_budget_bytes)]
        self._solved.update(dict.fromkeys(plans))
        fitting = [p for p in self._solved if temp_budget_bytes is None or p.predicted.temp_bytes <= temp_budget_bytes]
        if fitting:
            return min(fitting, key=lambda plan: plan.predicted.step_s)
        return min([*plans, self.smallest], key=lambda plan: plan.predicted.temp_bytes)

    @cached_property
    def smallest(self) -> Plan:
        """The plan of least predicted memory."""
        lowest = sorted(self.floors, key=lambda plan: (plan.predicted.temp_bytes, len(plan.stages)))[:_TRIED]
        return min(
            (self._plan(self._options_of(plan.stages), None) for plan in lowest),
            key=lambda plan: plan.predicted.temp_bytes,
        )

    @cached_property
    def last_resorts(self) -> tuple[Plan, ...]:
        """Plans to try before giving up: the smallest one, and full recomputation of the smallest cut.

        Both are the least that the model knows; which of them a compiler makes smaller is its affair.
        """
        return tuple(dict.fromkeys((self.smallest, self.full)))

    def _within(self, budget_bytes: int | None) -> Iterator[_Staged]:
        """The cut of least memory, and the finest that a budget leaves room for: they give most to choose from."""
        room = [p.stages for p in self.floors if budget_bytes is None or p.predicted.temp_bytes <= budget_bytes]
        for stages in dict.fromkeys((*room[-_TRIED:], self.full.stages)):
            yield self._options_of(stages)

    def _options_of(self, stages: Stages) -> _Staged:
        if stages not in self._staged:
            options = stage_options(self.problem, stages)
            self._staged[stages] = stages, options, look(self.problem, stages, options)
        return self._staged[stages]

    def _composed(self, staged: _Staged, budget_bytes: int | None) -> Plan:
        if budget_bytes is None:
            return self._plan(staged, sys.maxsize)
        limit_bytes = budget_bytes
        for _ in range(_ROUNDS):
            plan = self._plan(staged, limit_bytes)
            excess_bytes = plan.predicted.temp_bytes - budget_bytes
            if excess_bytes <= 0:
                return plan
            limit_bytes -= excess_bytes
        return self._plan(staged, None)

    def _plan(self, staged: _Staged, limit_bytes: int | None) -> Plan:
        stages, options, seen = staged
        chosen = compose(options, seen, budget_bytes=limit_bytes)
        if chosen is None:
            chosen = compose(options, seen, budget_bytes=None)
        assert chosen is not None, "without a limit there is always a combination"
        taken = [stage[k] for stage, k in zip(options, chosen, strict=True)]
        saved = boundaries(self.problem, stages).union(*(option.saved for option in taken))
        untouched = frozenset[int]().union(*(option.untouched for option in taken))
        return decide(self.problem, saved, stages, "optimal", untouched)


def solve_optimal(problem: Problem) -> Plan:
    """The cheapest plan within the problem's budget; see the module's docstring."""
    return OptimalSolver(problem).solve(problem.temp_budget_bytes)
