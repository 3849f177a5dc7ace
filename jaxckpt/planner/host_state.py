"""Solves a step with optimiser state in host memory (`schedule.host_state`): for budgets that are hard to meet without.

State in host memory changes no residual. A plan has the decisions of a plan without it, for a budget that is larger by
the bytes of the state, and is replayed with the copies of the state. Groups of state go to the host in the order in
which the backward finishes their gradients: the copies of early ones have the rest of the backward to hide in. Several
shares of the state are tried, since a copy may take longer than the recomputation that it spares.

Read after `chunking`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from jaxckpt.ir import GraphPlan
from jaxckpt.planner.candidate_pool import Candidate, CandidatePool, Generator, is_unplanned
from jaxckpt.schedule.host_state import StateGroups
from jaxckpt.solve import BudgetSolver

if TYPE_CHECKING:
    from jaxckpt.planner.planner import Planner

_QUESTIONS = 8
"""Questions to a solver for one plan: what the copies of the state take depends on where its peak is. With 4 the plan
of a decoder of width 4,096 at 17.04 GiB takes 455 ms, with 5 and more 375."""
_SHARES = (1 / 8, 1 / 4, 1 / 2, 3 / 4, 1)
"""The shares of the state that are tried. A plan takes a schedule and a replay for each."""


class HostStateSolver:
    """Solves a step with optimiser state in host memory, for any number of budgets.

    Args:
      planner: Has the problem of each transformed step.
      solvers: Solve the step with all arguments on the device, with its rows together and in pieces.
      like: Such a solver of the same step: both know the plans that one has predicted.
    """

    def __init__(self, planner: "Planner", solvers: Iterable[BudgetSolver], *, like: "HostStateSolver | None" = None):
        self._planner, self._solvers = planner, tuple(solvers)
        self._known: dict[tuple[GraphPlan, tuple[int, ...]], GraphPlan] = {} if like is None else like._known

    @cached_property
    def for_each_solver(self) -> "tuple[HostStateSolver, ...]":
        """A solver of this kind for each solver alone: copies may delay the plans of one more than those of another."""
        return tuple(HostStateSolver(self._planner, (solver,), like=self) for solver in self._solvers)

    @cached_property
    def choices(self) -> tuple[tuple[int, ...], ...]:
        """Arguments that may be in host memory together, by value id; () where the step has no such state."""
        graph, most_bytes = self._planner.graph, self._planner.problem.offloading.most_host_bytes
        arguments = graph.once(StateGroups).donated
        sizes = list(accumulate(graph.values[v].size_bytes for v in arguments))
        limits = (share * sizes[-1] for share in _SHARES if sizes)
        counts = (sum(1 for size in sizes if size <= min(limit, most_bytes or limit)) for limit in limits)
        return tuple(arguments[:count] for count in dict.fromkeys(counts) if count)

    @cached_property
    def state_bytes(self) -> int:
        """Bytes of all state that may be in host memory."""
        return max((self._planner.graph.size_bytes(choice) for choice in self.choices), default=0)

    @property
    def saved_bytes(self) -> int:
        """Bytes that all state on the host should take off a plan: two groups are on the device at once."""
        graph = self._planner.graph
        groups = sorted(graph.size_bytes(group.results) for group in graph.once(StateGroups).groups)
        return max(0, self.state_bytes - sum(groups[-2:]))

    @cached_property
    def min_memory_plans(self) -> tuple[GraphPlan, ...]:
        """Plans of about the least predicted memory: with all state that may be on the host."""
        least = dict.fromkeys(plan for solver in self._solvers for plan in solver.min_memory_plans)
        return tuple(self._with_state(plan, choice) for choice in self.choices[-1:] for plan in least)

    def solve(self, total_bytes: int) -> GraphPlan | None:
        """The fastest plan whose predicted total is within a budget; None if no plan with state on the host is."""
        plans = (self._within(solver, choice, total_bytes) for solver in self._solvers for choice in self.choices)
        fitting = [plan for plan in plans if plan.predicted.total_bytes <= total_bytes]
        return min(fitting, key=lambda plan: plan.predicted.step_s, default=None)

    def forget_budgets(self) -> None:
        """Forgets the plans of earlier budgets, so that the next answers do not depend on earlier questions."""
        for solver in self._solvers:
            solver.forget_budgets()

    def _within(self, solver: BudgetSolver, arguments: tuple[int, ...], total_bytes: int) -> GraphPlan:
        """The solver's plan for what a budget leaves, with the state on the host; less is asked once it is too large.

        The state of one or two groups is on the device while they are updated, beside the temporaries there.
        """
        temp_bytes = total_bytes - self._planner.fixed_bytes + self._planner.graph.size_bytes(arguments)
        found, before = solver.solve(temp_bytes), None
        for _ in range(_QUESTIONS - 1):
            excess_bytes = self._with_state(found, arguments).predicted.total_bytes - total_bytes
            if excess_bytes <= 0 or found == before:  # it fits, or is the plan of least memory
                break
            temp_bytes = min(temp_bytes, found.predicted.temp_bytes) - excess_bytes
            found, before = solver.solve(temp_bytes), found
        return self._with_state(found, arguments)

    def _with_state(self, plan: GraphPlan, arguments: tuple[int, ...]) -> GraphPlan:
        """A plan with some state on the host, with its prediction."""
        known = self._known.get((plan, arguments))
        if known is None:
            changed = replace(plan, host_arguments=arguments)
            problem = self._planner.problem_of(plan)
            known = self._known[plan, arguments] = replace(changed, prediction=problem.predict(changed))
        return known


class HostStatePlans(Generator):
    """Plans of one solver with optimiser state in host memory."""

    def __init__(self, solver: HostStateSolver):
        self._solver = solver

    def fixed_bytes(self, pool: CandidatePool) -> int:
        """Bytes of the total that none of these plans changes: without the state that may be on the host."""
        return pool.planner.least_fixed_bytes

    def fastest(self, pool: CandidatePool) -> Iterator[Candidate]:
        """The plan for the predicted total at which the compiled one should be the budget."""
        if (pool.best is not None and is_unplanned(pool.best.plan)) or pool.is_well_used(self):
            return
        error = pool.error(self, inherits=True)
        plan = self._solver.solve(pool.question(self, error))
        if plan is not None:
            yield pool.expected(plan, self, error)

    def smallest(self, pool: CandidatePool) -> Iterable[GraphPlan]:  # noqa: ARG002
        """Plans with all state on the host, and as little memory as possible otherwise."""
        return self._solver.min_memory_plans
