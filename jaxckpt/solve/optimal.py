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
from jaxckpt.solve.full import smallest_cuts, solve_full
from jaxckpt.solve.none import solve_none
from jaxckpt.solve.options import Option, stage_options
from jaxckpt.solve.problem import Problem, decide
from jaxckpt.solve.stages import Stages, boundaries
from jaxckpt.solve.windows import Window, windows

_NEARLY_SMALLEST = 1.1
"""Of the cuts whose peaks are within this of the smallest one, the finest is tried beside the smallest."""
_ROUNDS = 4
"""How often a composition that the replay finds too large is made again with less."""

_Staged = tuple[Stages, tuple[tuple[Option, ...], ...], tuple[Window, ...]]


class OptimalSolver:
    """Solves one step for any number of budgets; what does not depend on the budget is done once."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.unplanned = solve_none(problem)
        self.staged = tuple(self._staged())

    def solve(self, temp_budget_bytes: int | None, *, unplanned: bool = True) -> Plan:
        """The fastest plan whose predicted temporaries fit, else the one of least memory.

        Args:
          temp_budget_bytes: What temporaries may take; None for no limit.
          unplanned: Whether the step as it is may be the answer.
        """
        unplanned = unplanned and self.problem.may_be_unplanned
        if unplanned and (temp_budget_bytes is None or _temp_bytes(self.unplanned) <= temp_budget_bytes):
            return self.unplanned
        if temp_budget_bytes is None:
            return min((self._fastest(staged) for staged in self.staged), key=_step_s)
        plans = [self._composed(staged, temp_budget_bytes) for staged in self.staged]
        fitting = [plan for plan in plans if _temp_bytes(plan) <= temp_budget_bytes]
        if fitting:
            return min(fitting, key=_step_s)
        return min([*plans, self.smallest], key=_temp_bytes)

    def _fastest(self, staged: _Staged) -> Plan:
        """With what must be done done, and as little else as possible."""
        return self._plan(staged, sys.maxsize)

    @cached_property
    def smallest(self) -> Plan:
        """The plan of least predicted memory."""
        return min((self._plan(staged, None) for staged in self.staged), key=_temp_bytes)

    @cached_property
    def last_resorts(self) -> tuple[Plan, ...]:
        """Plans to try before giving up: the smallest one, and full recomputation of the smallest cut.

        Both are the least that the model knows; which of them a compiler makes smaller is its affair.
        """
        return tuple(dict.fromkeys((self.smallest, solve_full(self.problem))))

    def _staged(self) -> Iterator[_Staged]:
        for stages in _promising(self.problem):
            options = stage_options(self.problem, stages)
            yield stages, options, windows(self.problem, stages, options)

    def _composed(self, staged: _Staged, budget_bytes: int) -> Plan:
        limit_bytes = budget_bytes
        for _ in range(_ROUNDS):
            plan = self._plan(staged, limit_bytes)
            excess_bytes = _temp_bytes(plan) - budget_bytes
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
        kept = (stage[k].saved for stage, k in zip(options, chosen, strict=True))
        return decide(self.problem, boundaries(self.problem, stages).union(*kept), stages, "optimal")


def solve_optimal(problem: Problem) -> Plan:
    """The cheapest plan within the problem's budget; see the module's docstring."""
    return OptimalSolver(problem).solve(problem.temp_budget_bytes)


def _promising(problem: Problem) -> tuple[Stages, ...]:
    """Two cuts: that of the smallest peak with everything inside stages recomputed, and a fine one nearly as small.

    The first reaches furthest down, the second gives the composition more to choose from.
    """
    plans = sorted(
        smallest_cuts(problem, _NEARLY_SMALLEST),
        key=lambda plan: (_temp_bytes(plan), len(plan.stages)),
    )
    near = [plan for plan in plans if _temp_bytes(plan) <= _NEARLY_SMALLEST * _temp_bytes(plans[0])]
    finest = max(near, key=lambda plan: len(plan.stages))
    return tuple(dict.fromkeys((plans[0].stages, finest.stages)))


def _temp_bytes(plan: Plan) -> int:
    assert plan.prediction is not None
    return plan.prediction.temp_bytes


def _step_s(plan: Plan) -> float:
    assert plan.prediction is not None
    return plan.prediction.step_s
