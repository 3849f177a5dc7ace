"""Solves a step with a region that treats rows alike in pieces of rows: a loss head, whose logits exist in pieces then.

No decision about residuals lowers the memory of the logits of all tokens, of which the smallest plan of a language
model mostly consists. In n pieces, forward and backward together (`rewrite.chunk_rows`), the large values of the region
take 1/n of their bytes, and no matrix product is computed twice.

The number of pieces is chosen before anything is solved in pieces (`ChunkEstimate`), as a graph and a solver for each
number would take longer than the rest of the plan:

- Bytes: in replays of the undivided step, recomputed from each of its cuts, the values of the region take 1/n. The
  least n is taken with which they are about no longer the peak; more pieces would be slower, and save nothing.
- Seconds: each piece reads the weights, adds to the sums over rows, and launches kernels. Fewer pieces are faster if
  the budget has bytes for them. Of the plans for n pieces it is known what fewer bytes cost, so the plans of n/2
  pieces, and so on, need no solver to be estimated. The number that is estimated fastest is solved, if it is another,
  and twice as many pieces as long as their plan does not fit.

Stages before the region are the same in any number of pieces, and their options are solved once.

Read after `loop_tiling`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import jax.numpy as jnp

from jaxckpt._errors import ChunkError
from jaxckpt.ir import GraphPlan, Recompute, RowChunk
from jaxckpt.rewrite.chunk_rows import Chunk, with_chunk
from jaxckpt.rewrite.row_piece import accumulator_dtype
from jaxckpt.rows import RowRegion, find_regions
from jaxckpt.schedule import schedule
from jaxckpt.solve import OptimalSolver, Problem
from jaxckpt.solve.strategy import cheapest
from jaxckpt.trace import Traced
from jaxckpt.trace.sharding import aval_bytes

_PIECES = (2, 4, 8, 16, 32)
"""The numbers of pieces that there may be, as far as they divide the rows."""
_WORTH = 1 / 8
"""Rows run in pieces if the large values of the region take at least this share of the least temporaries of the
undivided step: below that, other values are the peak."""
_NEAR_LEAST = 1.1
"""The least number of pieces is taken whose peak is within this factor of that without the region: about the error of
the model."""
_FASTER = 0.995
"""Another number of pieces is solved if it is estimated to take at most this share of the seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkEstimate:
    """Bytes and seconds of a region in any number of pieces, estimated from the step with its rows together.

    Attributes:
      profiles: For each undivided plan that is looked at, at each of its steps, bytes of temporaries, and those of them
        that belong to values with rows which the region computes and nothing else reads: in n pieces they take 1/n.
      sum_bytes: Bytes of the accumulators of sums over rows, to which the kernels of a piece add their products.
      piece_s: Seconds that each piece takes besides its share of the rows.
    """

    profiles: tuple[tuple[tuple[int, int], ...], ...]
    sum_bytes: int
    piece_s: float

    def peak_bytes(self, pieces: int) -> float:
        """The least peak in so many pieces, at least two."""
        return self._least(lambda live, rows: live - rows + (rows / pieces + self.sum_bytes if rows else 0))

    @property
    def rest_bytes(self) -> float:
        """The least peak of the step without the values of the region."""
        return self._least(lambda live, rows: live - rows)

    def _least(self, resized: Callable[[int, int], float]) -> float:
        return min(max(resized(live, rows) for live, rows in profile) for profile in self.profiles)

    def further_bytes(self, pieces: int, than: int) -> int:
        """Bytes that the region takes in `pieces` beyond those that it takes in `than` pieces."""
        most_bytes = max(rows for profile in self.profiles for _, rows in profile)
        return int(most_bytes * (1 / pieces - 1 / than))

    @classmethod
    def of(cls, traced: Traced, region: RowRegion, problem: Problem, plans: Iterable[GraphPlan]) -> "ChunkEstimate":
        """The estimate from plans of the step with its rows together; each takes one replay."""
        divided = region.axes.keys() - set(region.stacked)
        values = {v for p in region.positions for v in traced.graph.ops[p].writes if traced.variables[v] in divided}
        kernels = sum(bool(problem.op_s[p]) for p in region.positions)
        shared_s = _shared_bytes(traced, region) / problem.rates.memory_bandwidth_bytes_per_s
        return cls(
            profiles=tuple(_profile(problem, plan, values) for plan in plans),
            sum_bytes=sum(_accumulator_bytes(v.aval) for v in region.sums),
            piece_s=kernels * problem.rates.launch_s + shared_s,
        )


def _accumulator_bytes(aval: Any) -> int:
    return int(aval.size) * jnp.dtype(accumulator_dtype(aval.dtype)).itemsize


def _profile(problem: Problem, plan: GraphPlan, values: Collection[int]) -> tuple[tuple[int, int], ...]:
    """At each step of a plan's replay the bytes of temporaries, and those of some values among them."""
    origin, replayed = schedule(problem.graph, plan).origin, problem.replay(plan)
    changes = [0] * (len(replayed.steps) + 1)
    for buffer, birth in replayed.births.items():
        if origin[buffer] in values:
            size_bytes = problem.graph.values[origin[buffer]].size_bytes
            changes[birth] += size_bytes
            changes[replayed.deaths[buffer] + 1] -= size_bytes
    return tuple(zip(replayed.live_bytes, accumulate(changes[:-1]), strict=True))


def _shared_bytes(traced: Traced, region: RowRegion) -> int:
    """Bytes that every piece reads or writes whatever its size: operands without rows, and sums over rows twice."""
    equations = traced.program.equations
    found = 0
    for position in region.positions:
        eqn, flow = equations[position].eqn, region.flows[position]
        found += sum(aval_bytes(v.aval) for v, axis in zip(eqn.invars, flow.operands, strict=True) if axis is None)
        found += 2 * sum(aval_bytes(v.aval) for v in eqn.outvars if v in region.sums)
    return found


class ChunkSolver:
    """Solves a step with rows in pieces, for any number of budgets; `solver` solves it with its rows together."""

    def __init__(self, traced: Traced, solver: OptimalSolver):
        self._traced = traced
        self._solver = solver
        self._solvers: dict[int, OptimalSolver | None] = {}
        self.problem = solver.problem

    @property
    def empty_plan(self) -> GraphPlan:
        """The step as it is."""
        return self._solver.empty_plan

    @property
    def can_divide(self) -> bool:
        """True if the step has a region that can run in pieces and is worth it."""
        return self._most is not None

    @cached_property
    def min_memory_plans(self) -> tuple[GraphPlan, ...]:
        """Plans of about the least predicted memory; () where that is no less than with all rows together."""
        if self._most is None:
            return ()
        least = self._most[1]
        undivided_bytes = self._solver.min_memory_plan.predicted.temp_bytes
        return least.min_memory_plans if least.min_memory_plan.predicted.temp_bytes < undivided_bytes else ()

    @cached_property
    def estimate(self) -> tuple[int, int]:
        """The pieces that least memory takes, and the bytes that they should take off the least undivided plan.

        Neither solved in pieces nor compiled; (1, 0) where rows in pieces take no less.
        """
        pieces = next(self._by_bytes(), None)
        region = None if pieces is None else self._region_in(pieces)
        if pieces is not None and region is not None:
            with suppress(ChunkError):
                with_chunk(self._traced, Chunk(region=region, pieces=pieces))
                undivided_bytes = self._solver.min_memory_plan.predicted.temp_bytes
                saved_bytes = undivided_bytes - int(self._estimate.peak_bytes(pieces))
                return (pieces, saved_bytes) if saved_bytes > 0 else (1, 0)
        return 1, 0

    def solve(self, temp_budget_bytes: int | None, *, allow_empty: bool = True) -> GraphPlan:
        """The fastest plan whose predicted temporaries fit, else the one of least memory; `can_divide` is true.

        `allow_empty` is about the step as it is: rows in pieces without a further decision are always allowed.
        """
        assert self._most is not None, "the caller has asked `can_divide`"
        most, solver = self._most
        divided = [solver.solve(temp_budget_bytes)]
        fewer = _PIECES.index(self._fewer_pieces(divided[0], temp_budget_bytes))
        for pieces in _PIECES[fewer : _PIECES.index(most)]:
            if (other := self._solver_of(pieces)) is not None:
                divided.append(other.solve(temp_budget_bytes))
                if temp_budget_bytes is None or divided[-1].predicted.temp_bytes <= temp_budget_bytes:
                    break
        empty = [self.empty_plan] if allow_empty and self.problem.allows_empty_plan else []
        return cheapest((*empty, *divided), temp_budget_bytes)

    def forget_budgets(self) -> None:
        """Forgets the plans of earlier budgets, so that the next answers do not depend on earlier questions."""
        for each in self._solvers.values():
            if each is not None:
                each.forget_budgets()

    def _fewer_pieces(self, plan: GraphPlan, temp_budget_bytes: int | None) -> int:
        """The number of pieces that is estimated fastest for a budget, from `plan` for the most pieces that there are.

        In fewer pieces the region takes more bytes, and the rest of the step has the plan of a smaller budget.
        """
        assert self._most is not None, "the caller has asked `can_divide`"
        most, solver = self._most
        best, best_s = most, _FASTER * plan.predicted.step_s
        for pieces in _PIECES[: _PIECES.index(most)]:
            if self._region_in(pieces) is None:
                continue
            spared_s = (most - pieces) * self._estimate.piece_s
            if temp_budget_bytes is None:
                rest = plan
            else:
                least_bytes = solver.min_memory_plan.predicted.temp_bytes
                left_bytes = temp_budget_bytes - self._estimate.further_bytes(pieces, most)
                if left_bytes < least_bytes:
                    continue
                rest = solver.solve(left_bytes)
            if rest.predicted.step_s - spared_s < best_s:
                best, best_s = pieces, rest.predicted.step_s - spared_s
        return best

    @cached_property
    def _regions(self) -> tuple[RowRegion, ...]:
        regions = (region for region in find_regions(self._traced).regions if self._may_divide(region))
        least_bytes = _WORTH * self._solver.min_memory_plan.predicted.temp_bytes
        return tuple(region for region in regions if region.large_bytes >= least_bytes)

    def _region_in(self, pieces: int) -> RowRegion | None:
        """The region that so many pieces are of: that of the largest values, with the first rows that they divide."""
        return next((each for each in self._regions if pieces in each.pieces), None)

    @cached_property
    def _estimate(self) -> ChunkEstimate:
        plans = dict.fromkeys((self._solver.min_memory_plan, *self._solver.cut_minima.near_least))
        return ChunkEstimate.of(self._traced, self._regions[0], self.problem, plans)

    @cached_property
    def _most(self) -> tuple[int, OptimalSolver] | None:
        """The most pieces that are worth it, with their solver; None if no region can run in pieces."""
        for pieces in self._by_bytes():
            if (solver := self._solver_of(pieces)) is not None:
                return pieces, solver
        return None

    def _by_bytes(self) -> Iterator[int]:
        """Numbers of pieces: the least with which the region is not the peak, then smaller and larger ones."""
        possible = [pieces for pieces in _PIECES if self._region_in(pieces) is not None]
        if not possible:
            return
        enough_bytes = _NEAR_LEAST * self._estimate.rest_bytes
        enough = [pieces for pieces in possible if self._estimate.peak_bytes(pieces) <= enough_bytes]
        first = enough[0] if enough else possible[-1]
        yield from sorted(possible, key=lambda pieces: (pieces != first, pieces))

    def _solver_of(self, pieces: int) -> OptimalSolver | None:
        """The solver of the step in so many pieces; None where loops are before and after the region."""
        region = self._region_in(pieces)
        if pieces not in self._solvers and region is not None:
            self._solvers[pieces] = None
            with suppress(ChunkError):
                self._solvers[pieces] = OptimalSolver(self._divided(region, pieces), like=self._solver)
        return self._solvers.get(pieces)

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
