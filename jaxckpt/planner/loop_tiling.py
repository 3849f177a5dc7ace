"""Where no plan of a step's own loops is small enough, the loops are nested, and solved like any other step.

Recomputing all of a body leaves one carry for every turn. Nested in O groups of I turns a loop leaves O + I, and runs
its body once more (`jaxckpt.ir.loop_tiling`). No such plan is faster than recomputing everything in the loop as it is:
that runs each body twice, which a nested one does at best, and stacks as much. So nesting is for budgets below that.

How many groups: O + I is least near the square root of the turns; what the turns of a group keep besides their carry
waits for I of them, so more groups of fewer turns leave room to keep it, and to run the body twice only. Pairs of
divisors are solved for the same memory, those of fewest carries first, and the fastest plan counts. A loop whose turns
are a prime number has no such pair.

Read after `jaxckpt.solve` and `jaxckpt.rewrite.tile_loops`; `planner` asks.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from math import isqrt

from jaxckpt.ir import GraphPlan, LoopTiling, Offload, Partition
from jaxckpt.ir.loop import CARRY
from jaxckpt.rewrite import tileable_loops, with_tiled_loops
from jaxckpt.solve import OptimalSolver, Problem
from jaxckpt.solve.strategy import cheapest
from jaxckpt.trace import Traced

_PAIRS = 3
"""How many pairs of divisors are solved."""
_WORTH = 0.05
"""A loop is nested if what its turns hand on takes at least this share of the temporaries of the smallest plan."""


class TilingSolver:
    """Solves a step with its loops nested for any number of budgets, as the planner asks it.

    Args:
      traced: The step.
      solver: Of its own loops.
    """

    def __init__(self, traced: Traced, solver: OptimalSolver):
        self._traced = traced
        self._solver = solver
        self.problem = replace(solver.problem, may_offload=False, may_partition=False)

    @cached_property
    def loop_tilings(self) -> tuple[tuple[LoopTiling, ...], ...]:
        """How loops are nested, in one way and others; those of fewest carries first, () where none can be."""
        pairs = {group[0]: tuple(_pairs(self._traced.graph.loops[group[0]].length)) for group in self._groups}
        most = max(map(len, pairs.values()), default=0)
        return tuple(
            tuple(_nest(loop, own[min(k, len(own) - 1)]) for loop, own in pairs.items())
            for k in range(min(most, _PAIRS))
        )

    @property
    def empty_plan(self) -> GraphPlan:
        """The step as it is."""
        return self._solver.empty_plan

    @cached_property
    def min_memory_plans(self) -> tuple[GraphPlan, ...]:
        """The plan of least predicted memory; none where that is no less than without nested loops."""
        least_bytes = self._solver.min_memory_plan.predicted.temp_bytes
        smaller = [
            each.min_memory_plan for each in self._solvers if each.min_memory_plan.predicted.temp_bytes < least_bytes
        ]
        return tuple(sorted(smaller, key=lambda plan: plan.predicted.temp_bytes)[:1])

    def solve(self, temp_budget_bytes: int | None, *, allow_empty: bool = True) -> GraphPlan:
        """The fastest plan whose predicted temporaries fit, else the one of least memory; there must be one.

        Args:
          temp_budget_bytes: What temporaries may take; None for no limit.
          allow_empty: True if the empty plan, the step as written, may be the answer.
        """
        tiled = [each.solve(temp_budget_bytes, allow_empty=False) for each in self._solvers]
        whole = [self.empty_plan] if allow_empty and self.problem.allows_empty_plan else []
        return cheapest((*whole, *tiled, *self.min_memory_plans), temp_budget_bytes)

    @cached_property
    def _solvers(self) -> tuple[OptimalSolver, ...]:
        return tuple(map(OptimalSolver, map(self._nested, self.loop_tilings)))

    def _nested(self, loop_tilings: tuple[LoopTiling, ...]) -> Problem:
        """The problem of the step with loops nested; what must be decided of a value is decided of its copies too."""
        made = with_tiled_loops(self._traced, loop_tilings)
        required = {copy: d for value, d in self.problem.required.items() for copy in made.values[value]}
        fingerprint = self._traced.graph.fingerprint
        return replace(
            self.problem, graph=made.traced.graph, required=required, loop_tilings=loop_tilings, fingerprint=fingerprint
        )

    @cached_property
    def _groups(self) -> tuple[tuple[int, ...], ...]:
        """Loops that are nested together, outer ones before those in their bodies, which then are not."""
        graph = self._traced.graph
        if any(isinstance(decision, Offload | Partition) for decision in self.problem.required.values()):
            return ()
        found: list[tuple[int, ...]] = []
        for group in tileable_loops(self._traced):
            around = {loop for each in group for loop in graph.path(each)}
            if not any(around.intersection(other) for other in found) and self._is_worth(group):
                found.append(group)
        return tuple(group for group in found if any(_pairs(graph.loops[group[0]].length)))

    def _is_worth(self, group: tuple[int, ...]) -> bool:
        """Whether what the forward turns of some loops hand on takes much of what the smallest plan takes."""
        graph = self._traced.graph
        forward = [loop for loop in group if loop not in graph.loops_after_forward]
        handed = (op.writes[0] for op in graph.ops if op.primitive == CARRY and op.loop in forward)
        return sum(map(graph.residual_bytes, handed)) >= _WORTH * self._solver.min_memory_plan.predicted.temp_bytes


def _pairs(turns: int) -> Iterator[tuple[int, int]]:
    """Groups and turns of each, at least as many groups as turns, fewest together first."""
    for inner in range(isqrt(turns), 1, -1):
        if turns % inner == 0:
            yield turns // inner, inner


def _nest(loop: int, pair: tuple[int, int]) -> LoopTiling:
    outer, inner = pair
    return LoopTiling(loop=loop, outer=outer, inner=inner)
