"""Solves a step with a region that treats rows alike in pieces of rows: a loss head, whose logits exist in pieces then.

No decision about residuals lowers the memory of the logits of all tokens, of which the smallest plan of a language
model mostly consists. In n pieces, forward and backward together (`rewrite.chunk_rows`), the large values of the region
take 1/n of their bytes, and no matrix product is computed twice. More pieces are smaller products and more launches of
kernels, so several numbers of pieces are solved for the same memory, and the fastest plan counts.

Read after `loop_tiling`.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

from jaxckpt._errors import ChunkError
from jaxckpt.ir import GraphPlan, Recompute, RowChunk
from jaxckpt.rewrite.chunk_rows import Chunk, with_chunk
from jaxckpt.rows import RowRegion, find_regions
from jaxckpt.solve import OptimalSolver, Problem
from jaxckpt.solve.strategy import cheapest
from jaxckpt.trace import Traced

_PIECES = (2, 4, 8, 16, 32)
"""The numbers of pieces that are tried, as far as they divide the rows."""
_WORTH = 1 / 8
"""More pieces are tried while the large values of one piece are at least this share of the least temporaries of the
step with its rows together: below that, other values are the peak."""


class ChunkSolver:
    """Solves a step with rows in pieces, for any number of budgets; `solver` solves it with its rows together."""

    def __init__(self, traced: Traced, solver: OptimalSolver):
        self._traced = traced
        self._solver = solver
        self.problem = solver.problem

    @property
    def empty_plan(self) -> GraphPlan:
        """The step as it is."""
        return self._solver.empty_plan

    @property
    def can_divide(self) -> bool:
        """True if the step has a region that can run in pieces and is worth it."""
        return bool(self._solvers)

    @cached_property
    def min_memory_plans(self) -> tuple[GraphPlan, ...]:
        """Plans of about the least predicted memory; () where that is no less than with all rows together."""
        if not self.can_divide:
            return ()
        least = min(self._solvers, key=lambda each: each.min_memory_plan.predicted.temp_bytes)
        undivided_bytes = self._solver.min_memory_plan.predicted.temp_bytes
        return least.min_memory_plans if least.min_memory_plan.predicted.temp_bytes < undivided_bytes else ()

    def solve(self, temp_budget_bytes: int | None, *, allow_empty: bool = True) -> GraphPlan:
        """The fastest plan whose predicted temporaries fit, else the one of least memory; `can_divide` is true.

        `allow_empty` is about the step as it is: rows in pieces without a further decision are always allowed.
        """
        divided = [each.solve(temp_budget_bytes) for each in self._solvers]
        empty = [self.empty_plan] if allow_empty and self.problem.allows_empty_plan else []
        return cheapest((*empty, *divided), temp_budget_bytes)

    def forget_budgets(self) -> None:
        """Forgets the plans of earlier budgets, so that the next answers do not depend on earlier questions."""
        for each in self._solvers:
            each.forget_budgets()

    @cached_property
    def _solvers(self) -> tuple[OptimalSolver, ...]:
        """The solvers of the step in two pieces, in four, and so on."""
        return tuple(map(OptimalSolver, self._problems()))

    def _problems(self) -> Iterator[Problem]:
        regions = [region for region in find_regions(self._traced).regions if self._may_divide(region)]
        least_bytes = _WORTH * self._solver.min_memory_plan.predicted.temp_bytes
        for fewer, pieces in zip((1, *_PIECES), _PIECES, strict=False):
            region = next((each for each in regions if pieces in each.pieces), None)
            if region is not None and region.large_bytes / fewer >= least_bytes:
                with suppress(ChunkError):  # loops are before and after the region
                    yield self._divided(region, pieces)

    def _divided(self, region: RowRegion, pieces: int) -> Problem:
        """The problem of the step in pieces; what is required of a value outside of the region is required there."""
        traced = with_chunk(self._traced, Chunk(region=region, pieces=pieces))
        ids = {variable: value for value, variable in enumerate(traced.variables)}
        pairs = ((self._traced.variables[value], decision) for value, decision in self.problem.required.items())
        return replace(
            self.problem,
            graph=traced.graph,
            required={ids[variable]: decision for variable, decision in pairs if variable in ids},
            row_chunks=(RowChunk(value=region.value, dimension=region.dimension, pieces=pieces),),
            fingerprint=self._traced.graph.fingerprint,
        )

    def _may_divide(self, region: RowRegion) -> bool:
        """True if no value of a region is required to be saved, offloaded or sharded: in pieces it does not exist."""
        ops = self._traced.graph.ops
        inside = {value for position in region.positions for value in ops[position].writes}
        required = self.problem.required.items()
        return all(isinstance(decision, Recompute) for value, decision in required if value in inside)
