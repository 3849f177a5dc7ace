"""Checkmate's integer programme: which values are in memory, and which ops run, before each new op runs first.

The step's kernels 1..n run first in their order; what happens up to the first run of the t-th is stage t. With costs
C_i and bytes M_i:

    minimise    sum_t sum_i C_i R_ti
    subject to  R_tj <= R_ti + S_ti                        for each j that reads i          (1b)
                S_ti <= R_{t-1,i} + S_{t-1,i}                                               (1c)
                S_1i = 0,  R_tt = 1,  R_ti = S_ti = 0 for i > t (S: i >= t)                 (1d, 8)
                U_tk <= budget                             bytes after the k-th op of t     (2, 3)

U_tk counts what is kept into the stage and what it has computed so far, less what was freed: FREE_tik = 1 where i is
freed once k has run, which is where no later op of the stage reads it and the next stage does not keep it (5, 7).

A plan says once what is kept between forward and backward, so it takes S of the stage in which the backward begins; the
rest is computed again. The programme has some n^2 unknowns and is for small steps: at most `MOST_KERNELS` kernels.

Source: Jain et al. 2020, "Checkmate: breaking the memory wall with optimal tensor rematerialization" (MLSys,
arXiv:1910.02653), sections 4.3-4.8; equation numbers are theirs. Read after `chain`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxckpt._errors import TooLargeError
from jaxckpt.ir import GraphPlan, Phase
from jaxckpt.solve.baselines.chain import chain, closed, fused_kernel
from jaxckpt.solve.full_recompute import solve_full
from jaxckpt.solve.milp import Rows, byte_unit, minimise
from jaxckpt.solve.problem import Problem, decide, solve_none
from jaxckpt.solve.strategy import cheapest

MOST_KERNELS = 16
_SHARES = (1.0, 0.85, 0.7, 0.5)
"""Of the budget, for the programme: the replay counts a little differently, and has the last word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """A list of kernels in order: C in seconds, M in bytes, and the earlier kernels that each one reads."""

    cost_s: tuple[float, ...]
    size_bytes: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """The programme's optimum: for each stage the kernels that are kept into it, and those that run in it."""

    cost_s: float
    kept: tuple[frozenset[int], ...]
    runs: tuple[frozenset[int], ...]


def solve_checkmate(problem: Problem, temp_budget_bytes: int | None = None) -> GraphPlan:
    """Keeps what the programme keeps into the backward; raises `TooLargeError` for more than `MOST_KERNELS` kernels."""
    kernels, made = _kernels(problem)
    if temp_budget_bytes is None:
        return solve_none(problem) if problem.allows_empty_plan else solve_full(problem)
    first = next((k for k, op in enumerate(made) if problem.graph.ops[op].phase is not Phase.FORWARD), len(made) - 1)
    plans, stages = [solve_full(problem)], chain(problem)
    for share in _SHARES:
        solved = schedule(kernels, budget_bytes=share * temp_budget_bytes)
        if solved is None:
            break
        kept = {v for k in solved.kept[first] for v in problem.graph.ops[made[k]].writes}
        saved = frozenset(kept & problem.worth_saving) | problem.never_recomputed
        plans.append(decide(problem, saved, closed(problem, stages, saved), "checkmate"))
        if plans[-1].predicted.temp_bytes <= temp_budget_bytes:
            break
    return cheapest(plans, temp_budget_bytes)


def schedule(kernels: Kernels, *, budget_bytes: float) -> Solved | None:
    """The programme's optimum within a budget of all results in memory at once, or None where nothing fits.

    Example:
      >>> chain = Kernels(cost_s=(1, 1, 1, 1), size_bytes=(1, 1, 1, 1), reads=((), (0,), (1,), (0, 2)))
      >>> schedule(chain, budget_bytes=3).cost_s, schedule(chain, budget_bytes=2)
      (4.0, None)
    """
    return _CheckmateProgramme(kernels, budget_bytes).solve()


class _CheckmateProgramme:
    """Variables R_ti, S_ti, FREE_tik and U_tk, and the rows over them; stages and kernels count from 0."""

    def __init__(self, kernels: Kernels, budget_bytes: float):
        self.kernels = kernels
        self.length = n = len(kernels.cost_s)
        self.users = [[j for j in range(n) if i in kernels.reads[j]] for i in range(n)]
        unit = byte_unit(max(kernels.size_bytes))
        self.size = [size_bytes / unit for size_bytes in kernels.size_bytes]
        self.budget = budget_bytes / unit
        self.variable: dict[tuple[str, int, int, int], int] = {}
        for t in range(n):
            for i in range(t + 1):
                self._new("R", t, i)
            for i in range(t):
                self._new("S", t, i)
            for k in range(t + 1):
                self._new("U", t, k)
                for i in (*kernels.reads[k], k):
                    self._new("FREE", t, i, k)
        self.rows = Rows()
        self._correctness()
        self._memory()

    def solve(self) -> Solved | None:
        count, n = len(self.variable), self.length
        integral, upper, cost, lower = np.ones(count), np.ones(count), np.zeros(count), np.zeros(count)
        for (kind, t, i, _), column in self.variable.items():
            if kind == "U":
                integral[column], upper[column] = 0, self.budget
            if kind == "R":
                cost[column] = self.kernels.cost_s[i]
                lower[column] = 1 if t == i else 0
        cost /= max(cost.max(), 1e-30)
        within = [self.rows.constraint(count)]
        found = minimise(cost, within, integrality=integral, lower=lower, upper=upper, node_limit=20_000)
        if found is None:
            return None
        columns = found[0] > 0.5

        def chosen(kind: str, t: int) -> frozenset[int]:
            known = ((i, self.variable.get((kind, t, i, -1))) for i in range(t + 1))
            return frozenset(i for i, column in known if column is not None and columns[column])

        runs = tuple(chosen("R", t) for t in range(n))
        cost_s = float(sum(self.kernels.cost_s[i] for stage in runs for i in stage))
        return Solved(cost_s=cost_s, kept=tuple(chosen("S", t) for t in range(n)), runs=runs)

    def _correctness(self) -> None:
        """Ops have their operands (1b); values kept into a stage were available before (1c)."""
        for t in range(self.length):
            for j in range(t + 1):
                for i in self.kernels.reads[j]:
                    self.rows.add(self._sum([("R", t, i, 1), ("S", t, i, 1), ("R", t, j, -1)]), lower=0)
            for i in range(t):
                self.rows.add(self._sum([("R", t - 1, i, 1), ("S", t - 1, i, 1), ("S", t, i, -1)]), lower=0)

    def _memory(self) -> None:
        """U_tk by recurrence (2, 3), and when something is freed (5, 7)."""
        for t in range(self.length):
            for k in range(t + 1):
                before = [("U", t, k - 1, -1.0)] if k else [("S", t, i, -self.size[i]) for i in range(t)]
                freed = [(i, k - 1) for i in (*self.kernels.reads[k - 1], k - 1)] if k else []
                terms = self._sum([("U", t, k, 1.0), *before, ("R", t, k, -self.size[k])])
                terms |= {self.variable["FREE", t, i, by]: self.size[i] for i, by in freed}
                self.rows.add(terms, lower=0, upper=0)
                for i in (*self.kernels.reads[k], k):
                    self._hazards(t, i, k)

    def _hazards(self, t: int, i: int, k: int) -> None:
        """1 - FREE_tik <= hazards <= kappa (1 - FREE_tik): k does not run, i is kept on, or a later op reads it."""
        later = [j for j in self.users[i] if k < j <= t]
        terms = self._sum([("R", t, k, -1.0), ("S", t + 1, i, 1.0), *(("R", t, j, 1.0) for j in later)])
        free, kappa = self.variable["FREE", t, i, k], 2.0 + len(later)
        self.rows.add({**terms, free: 1.0}, lower=0)
        self.rows.add({**terms, free: kappa}, upper=kappa - 1)

    def _sum(self, terms: Sequence[tuple[str, int, int, float]]) -> dict[int, float]:
        """Terms by variable, without those that are 0 by the frontier (8)."""
        found: dict[int, float] = {}
        for kind, t, i, factor in terms:
            column = self.variable.get((kind, t, i, -1))
            if column is not None:
                found[column] = found.get(column, 0.0) + factor
        return found

    def _new(self, kind: str, t: int, i: int, k: int = -1) -> None:
        self.variable.setdefault((kind, t, i, k), len(self.variable))


def _kernels(problem: Problem) -> tuple[Kernels, tuple[int, ...]]:
    """The kernels of a step, in order, and the op of each."""
    # Complexity: the refusal of large steps, then one line for each field of `Kernels`.
    graph, written_values = problem.graph, problem.fusion.materialised
    made = tuple(op.id for op in graph.ops if op.effects or not written_values.isdisjoint(op.writes))
    if len(made) > MOST_KERNELS:
        raise TooLargeError(
            'solve(strategy="checkmate") is an integer programme with a square of unknowns.',
            got=f"{len(made)} kernels ({len(graph.ops)} ops)",
            needed=f"at most {MOST_KERNELS} kernels",
            advice='strategy="optimal", which solves the same programme stage by stage',
            ops=len(made),
            most=MOST_KERNELS,
        )
    position = {v: k for k, op in enumerate(made) for v in graph.ops[op].writes}
    written = [[graph.values[v].size_bytes for v in graph.ops[op].writes if v not in graph.outputs] for op in made]
    kernels = Kernels(
        cost_s=tuple(problem.op_s[op] for op in made),
        size_bytes=tuple(map(sum, written)),
        reads=tuple(tuple(sorted({position[v] for v in _reads(problem, op) & position.keys()})) for op in made),
    )
    return kernels, made


def _reads(problem: Problem, op: int) -> frozenset[int]:
    """The values that the kernel of an op reads."""
    return frozenset[int]().union(*(fused_kernel(problem, v)[1] for v in problem.graph.ops[op].writes))
