"""Solves a step with its loops tiled (nested, strip-mined): for budgets that no plan of the loops as they are meets.

A loop whose body is recomputed saves one carry for every iteration. Tiled in O groups of I iterations the loop saves
O + I carries and runs its body once more, as recursive checkpointing does (`jaxckpt.ir.plan`). No such plan
is faster than recomputing all of the body in the loop as it is: that runs each body twice, and so does the fastest
tiling.

O + I is least near the square root of the trip count. Other residuals of a group are saved for I iterations, so more
groups of fewer iterations leave room to save these and to run the body only twice. Several pairs of divisors (O, I) are
solved for the same memory, and the fastest plan counts. A trip count that is prime has no such pair.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from math import isqrt

from jaxckpt.ir import GraphPlan, LoopTiling
from jaxckpt.ir.regions import CARRY
from jaxckpt.planner.limits import Limits
from jaxckpt.rewrite.tile_loops import tileable_loops, with_tiled_loops
from jaxckpt.solve import OptimalSolver, Problem
from jaxckpt.solve.strategy import cheapest
from jaxckpt.trace import Traced

_LIMITS = Limits()


class TilingSolver:
    """Solves a step with its loops tiled, for any number of budgets; `solver` solves it with its loops as they are."""

    def __init__(self, traced: Traced, solver: OptimalSolver, limits: Limits = _LIMITS):
        self._traced = traced
        self._limits = limits
        self._solver = solver
        self.problem = replace(solver.problem, may_offload=False, may_partition=False)

    @cached_property
    def loop_tilings(self) -> tuple[tuple[LoopTiling, ...], ...]:
        """Ways to tile the loops, those of fewest carries first; () where no loop can be tiled."""
        loops = [group[0] for group in self._groups]
        own = [tuple(_tilings(loop, self._traced.graph.loops[loop].length)) for loop in loops]
        most = max(map(len, own), default=0)
        return tuple(tuple(each[min(k, len(each) - 1)] for each in own) for k in range(min(most, self._limits.tilings)))

    @property
    def empty_plan(self) -> GraphPlan:
        """The step as it is."""
        return self._solver.empty_plan

    @cached_property
    def min_memory_plans(self) -> tuple[GraphPlan, ...]:
        """The plan of least predicted memory; () where that is no less than without tiled loops."""
        least_bytes = self._solver.min_memory_plan.predicted.temp_bytes
        smaller = [
            each.min_memory_plan for each in self._solvers if each.min_memory_plan.predicted.temp_bytes < least_bytes
        ]
        return tuple(sorted(smaller, key=lambda plan: plan.predicted.temp_bytes)[:1])

    def solve(self, temp_budget_bytes: int | None, *, allow_empty: bool = True) -> GraphPlan:
        """The fastest plan whose predicted temporaries fit, else the one of least memory; `loop_tilings` is not ()."""
        tiled = [each.solve(temp_budget_bytes, allow_empty=False) for each in self._solvers]
        empty = [self.empty_plan] if allow_empty and self.problem.allows_empty_plan else []
        return cheapest((*empty, *tiled, *self.min_memory_plans), temp_budget_bytes)

    def forget_budgets(self) -> None:
        """Forgets the plans of earlier budgets, so that the next answers do not depend on earlier questions."""
        if "_solvers" in vars(self):
            for each in self._solvers:
                each.forget_budgets()

    @cached_property
    def _solvers(self) -> tuple[OptimalSolver, ...]:
        return tuple(map(OptimalSolver, map(self._tiled, self.loop_tilings)))

    def _tiled(self, loop_tilings: tuple[LoopTiling, ...]) -> Problem:
        """The problem of the tiled step; a decision that is required of a value is required of its copies."""
        tiled = with_tiled_loops(self._traced, loop_tilings)
        required = {copy: d for value, d in self.problem.required.items() for copy in tiled.values[value]}
        changed = replace(self.problem, graph=tiled.traced.graph, required=required)
        return replace(changed, loop_tilings=loop_tilings, fingerprint=self._traced.graph.fingerprint)

    @cached_property
    def _groups(self) -> tuple[tuple[int, ...], ...]:
        """Loops that are tiled together; the body of a loop that is tiled keeps its own loops as they are."""
        if any(decision.moves for decision in self.problem.required.values()):
            return ()
        graph = self._traced.graph
        found: list[tuple[int, ...]] = []
        for group in tileable_loops(self._traced):
            enclosing = {loop for each in group for loop in graph.path(each)}
            if not any(enclosing.intersection(other) for other in found) and self._is_worth_tiling(group):
                found.append(group)
        return tuple(group for group in found if any(_tilings(group[0], graph.loops[group[0]].length)))

    def _is_worth_tiling(self, group: tuple[int, ...]) -> bool:
        """True if the carries of the forward iterations are a large share of the temporaries of the smallest plan."""
        graph = self._traced.graph
        forward = [loop for loop in group if loop not in graph.loops_after_forward]
        carries = (op.writes[0] for op in graph.ops if op.primitive == CARRY and op.loop in forward)
        least_bytes = self._limits.worth_tiling * self._solver.min_memory_plan.predicted.temp_bytes
        return sum(map(graph.residual_bytes, carries)) >= least_bytes


def _tilings(loop: int, trip_count: int) -> Iterator[LoopTiling]:
    """Tilings of a loop by divisors, at least as many groups as iterations of each, the smallest sum first."""
    for inner in range(isqrt(trip_count), 1, -1):
        if trip_count % inner == 0:
            yield LoopTiling(loop=loop, outer=trip_count // inner, inner=inner)
