"""Checkmate: which values are in memory, and which ops run, before each new op runs first; exactly or by relaxation.

The step's kernels 1..n run first in their order; what happens up to the first run of the t-th is stage t. With costs
C_i and bytes M_i:

    minimise    sum_t sum_i C_i R_ti
    subject to  R_tj <= R_ti + S_ti                        for each j that reads i          (1b)
                S_ti <= R_{t-1,i} + S_{t-1,i}                                               (1c)
                S_1i = 0,  R_tt = 1,  R_ti = S_ti = 0 for i > t (S: i >= t)                 (1d, 8)
                U_tk <= budget                             bytes after the k-th op of t     (2, 3)

U_tk counts what is kept into the stage and what it has computed so far, less what was freed: FREE_tik = 1 where i is
freed once k, which reads it, has run: no later op of the stage reads i and the next stage does not keep it (5, 7).

`schedule` solves the integer programme. `approximate` solves its linear relaxation for a somewhat smaller budget,
rounds S, and computes the cheapest R of it (two-phase rounding, algorithm 2). The rounded schedule may exceed the
budget, so several allowances are tried (epsilon, section 5.3), and for each several thresholds, as the paper's code
does.

A plan says once what is kept between forward and backward, so it takes S of the stage in which the backward begins; the
rest is computed again. The programme has some n^2 + n |E| / 2 unknowns: exact up to `EXACT_KERNELS` kernels, relaxed up
to `MOST_KERNELS`.

Source: Jain et al. 2020, "Checkmate: breaking the memory wall with optimal tensor rematerialization" (MLSys,
arXiv:1910.02653), sections 4.3-4.8 and 5.1-5.3; equation numbers are theirs. Read after `chain`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jaxckpt._errors import TooLargeError
from jaxckpt.ir import GraphPlan, Phase
from jaxckpt.solve.baselines.chain import chain, closed, fused_kernel
from jaxckpt.solve.full_recompute import solve_full
from jaxckpt.solve.milp import Rows, byte_unit, minimise
from jaxckpt.solve.problem import Problem, decide, solve_none
from jaxckpt.solve.strategy import cheapest

EXACT_KERNELS = 16
MOST_KERNELS = 100
"""A relaxation of 69 kernels takes 1.2 s of processor time, of 145 50 s (the U-Net and the fused ResNet-50 of
`benchmarks.checkmate`); a budget takes some of them."""
_SHARES = (1.0, 0.85, 0.7, 0.5)
"""Of the budget, for the programme: the replay counts a little differently, and has the last word."""
_ALLOWANCES = (0.0, 0.05, 0.1, 0.2, 0.3)
_THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """A list of kernels in order: C in seconds, M in bytes, and the earlier kernels that each one reads."""

    cost_s: tuple[float, ...]
    size_bytes: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """The kernels that read each one, in order."""
        found: list[list[int]] = [[] for _ in self.reads]
        for j, reads in enumerate(self.reads):
            for i in reads:
                found[i].append(j)
        return tuple(map(tuple, found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """A schedule: for each stage the kernels that are kept into it and those that run in it; its seconds and bytes."""

    cost_s: float
    peak_bytes: int
    kept: tuple[frozenset[int], ...]
    runs: tuple[frozenset[int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """The linear relaxation's optimum: a lower bound of the cost, and S, a row a stage and a column a kernel."""

    cost_s: float
    kept: np.ndarray


def solve_checkmate(problem: Problem, temp_budget_bytes: int | None = None) -> GraphPlan:
    """Keeps what the programme keeps into the backward; raises `TooLargeError` for more than `MOST_KERNELS` kernels."""
    kernels, made = _kernels(problem)
    if temp_budget_bytes is None:
        return solve_none(problem) if problem.allows_empty_plan else solve_full(problem)
    first = next((k for k, op in enumerate(made) if problem.graph.ops[op].phase is not Phase.FORWARD), len(made) - 1)
    plans, stages = [solve_full(problem)], chain(problem)
    for share in _SHARES:
        candidates = dict.fromkeys(solved.kept[first] for solved in _candidates(kernels, share * temp_budget_bytes))
        for kept in candidates:
            values = {v for k in kept for v in problem.graph.ops[made[k]].writes}
            saved = frozenset(values & problem.worth_saving) | problem.never_recomputed
            plans.append(decide(problem, saved, closed(problem, stages, saved), "checkmate"))
        if not candidates or any(plan.predicted.temp_bytes <= temp_budget_bytes for plan in plans[1:]):
            break
    return cheapest(plans, temp_budget_bytes)


def schedule(kernels: Kernels, *, budget_bytes: float, **limits: float) -> Solved | None:
    """The integer programme's optimum within a budget of all results in memory at once, or None where nothing fits.

    `limits` are scipy's options for `milp`; with them the best schedule found by then, or None.

    Example:
      >>> chain = Kernels(cost_s=(1, 1, 1, 1), size_bytes=(1, 1, 1, 1), reads=((), (0,), (1,), (0, 2)))
      >>> schedule(chain, budget_bytes=3).cost_s, schedule(chain, budget_bytes=2)
      (4.0, None)
    """
    programme = _CheckmateProgramme(kernels, budget_bytes)
    found = programme.solve(integral=True, **limits)
    return None if found is None else two_phase(kernels, found.kept > 0.5)


def relax(kernels: Kernels, *, budget_bytes: float) -> Relaxed | None:
    """The linear relaxation's optimum (section 5.1), or None where nothing fits.

    Example:
      >>> chain = Kernels(cost_s=(1, 1, 1, 1), size_bytes=(1, 1, 1, 1), reads=((), (0,), (1,), (0, 2)))
      >>> relax(chain, budget_bytes=3).cost_s
      4.0
    """
    return _CheckmateProgramme(kernels, budget_bytes).solve(integral=False)


def approximate(
    kernels: Kernels,
    *,
    budget_bytes: float,
    allowances: Sequence[float] = _ALLOWANCES,
    thresholds: Sequence[float] = _THRESHOLDS,
) -> Solved | None:
    """The cheapest rounded relaxation within a budget, or None if none is within it.

    Args:
      kernels: The step.
      budget_bytes: Of all results in memory at once.
      allowances: Shares of the budget that the relaxation leaves to rounding (epsilon), rising; the search ends where
        a relaxation costs as much as the best schedule so far.
      thresholds: S is rounded up above each of them.

    Example:
      >>> chain = Kernels(cost_s=(1, 1, 1, 1), size_bytes=(1, 1, 1, 1), reads=((), (0,), (1,), (0, 2)))
      >>> approximate(chain, budget_bytes=3).cost_s, approximate(chain, budget_bytes=2)
      (4.0, None)
    """
    best: Solved | None = None
    for allowance in allowances:
        relaxed = relax(kernels, budget_bytes=(1 - allowance) * budget_bytes)
        if relaxed is None or (best is not None and best.cost_s <= relaxed.cost_s):
            break
        rounded = (two_phase(kernels, relaxed.kept > threshold) for threshold in thresholds)
        fitting = (each for each in (*rounded, best) if each is not None and each.peak_bytes <= budget_bytes)
        best = min(fitting, key=lambda solved: (solved.cost_s, solved.peak_bytes), default=None)
    return best


def two_phase(kernels: Kernels, kept: np.ndarray) -> Solved:
    """The cheapest schedule that keeps at most `kept`, a row a stage and a column a kernel (algorithm 2).

    The stages are visited from the last to the first: what runs in a stage follows from what the next one keeps, and
    what is kept into a stage although neither it nor the next one reads it is dropped (section 4.9).
    """
    length = len(kernels.cost_s)
    stages: list[tuple[frozenset[int], frozenset[int]]] = []
    following: frozenset[int] = frozenset()
    for t in reversed(range(length)):
        available = frozenset(np.flatnonzero(kept[t, :t]).tolist())
        runs = {t} | (following - available)
        for j in range(t, -1, -1):
            if j in runs:
                runs.update(frozenset(kernels.reads[j]) - available)
        read = frozenset(i for j in runs for i in kernels.reads[j])
        following = available & (read | following)
        stages.append((following, frozenset(runs)))
    stage_kept, stage_runs = zip(*reversed(stages), strict=True)
    return Solved(
        cost_s=float(sum(kernels.cost_s[i] for runs in stage_runs for i in runs)),
        peak_bytes=max(_stage_peaks(kernels, stage_kept, stage_runs)),
        kept=stage_kept,
        runs=stage_runs,
    )


def _stage_peaks(kernels: Kernels, kept: Sequence[frozenset[int]], runs: Sequence[frozenset[int]]) -> Iterator[int]:
    """The largest U of each stage, each value freed after its last use (5)."""
    for now, running, following in zip(kept, runs, (*kept[1:], frozenset[int]()), strict=True):
        used_bytes = sum(kernels.size_bytes[i] for i in now)
        peak_bytes = used_bytes
        for k in sorted(running):
            used_bytes += kernels.size_bytes[k]
            peak_bytes = max(peak_bytes, used_bytes)
            for i in (*kernels.reads[k], k):
                if i not in following and not any(j > k and j in running for j in kernels.users[i]):
                    used_bytes -= kernels.size_bytes[i]
        yield peak_bytes


class _CheckmateProgramme:
    """Variables R_ti, S_ti, U_tk and FREE_tik, and the rows over them; stages and kernels count from 0.

    Left out, because no optimum needs them: FREE_tkk (section 4.8); frees after the last op of a stage; the bound (7b),
    which only obliges to free.
    """

    def __init__(self, kernels: Kernels, budget_bytes: float):
        self.kernels = kernels
        self.length = n = len(kernels.cost_s)
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
            for k in range(t):
                for i in kernels.reads[k]:
                    self._new("FREE", t, i, k)
        self.rows = Rows()
        self._correctness()
        self._memory()

    def solve(self, *, integral: bool, **limits: float) -> Relaxed | None:
        """The optimum; with `integral` the best schedule found within limits of scipy's `milp`."""
        count, n = len(self.variable), self.length
        integrality, upper = np.full(count, int(integral)), np.ones(count)
        cost, lower = np.zeros(count), np.zeros(count)
        for (kind, t, i, _), column in self.variable.items():
            if kind == "U":
                integrality[column], upper[column] = 0, self.budget
            if kind == "R":
                cost[column] = self.kernels.cost_s[i]
                lower[column] = 1 if t == i else 0
        unit_s = max(cost.max(), 1e-30)
        within = [self.rows.constraint(count)]
        found = minimise(cost / unit_s, within, integrality=integrality, lower=lower, upper=upper, **limits)
        if found is None:
            return None
        kept = np.zeros((n, n))
        for (kind, t, i, _), column in self.variable.items():
            if kind == "S":
                kept[t, i] = found[0][column]
        return Relaxed(cost_s=float(found[1] * unit_s), kept=kept)

    def _correctness(self) -> None:
        """Ops have their operands (1b); values kept into a stage were available before (1c)."""
        for t in range(self.length):
            for j in range(t + 1):
                for i in self.kernels.reads[j]:
                    self.rows.add(self._sum([("R", t, i, 1), ("S", t, i, 1), ("R", t, j, -1)]), lower=0)
            for i in range(t):
                self.rows.add(self._sum([("R", t - 1, i, 1), ("S", t - 1, i, 1), ("S", t, i, -1)]), lower=0)

    def _memory(self) -> None:
        """U_tk by recurrence (2, 3), and when something is freed (5, 7c)."""
        for t in range(self.length):
            for k in range(t + 1):
                before = [("U", t, k - 1, -1.0)] if k else [("S", t, i, -self.size[i]) for i in range(t)]
                freed = [(i, k - 1) for i in self.kernels.reads[k - 1]] if k else []
                terms = self._sum([("U", t, k, 1.0), *before, ("R", t, k, -self.size[k])])
                terms |= {self.variable["FREE", t, i, by]: self.size[i] for i, by in freed}
                self.rows.add(terms, lower=0, upper=0)
                for i, by in freed:
                    self._hazards(t, i, by)

    def _hazards(self, t: int, i: int, k: int) -> None:
        """Hazards <= kappa (1 - FREE_tik): k does not run, i is kept on, or a later op reads it."""
        later = [j for j in self.kernels.users[i] if k < j <= t]
        terms = self._sum([("R", t, k, -1.0), ("S", t + 1, i, 1.0), *(("R", t, j, 1.0) for j in later)])
        kappa = 2.0 + len(later)
        self.rows.add({**terms, self.variable["FREE", t, i, k]: kappa}, upper=kappa - 1)

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


def _candidates(kernels: Kernels, budget_bytes: float) -> Iterator[Solved]:
    """The optimum within a budget, or schedules rounded from the relaxation's."""
    if len(kernels.cost_s) <= EXACT_KERNELS:
        solved = schedule(kernels, budget_bytes=budget_bytes, node_limit=20_000)
        if solved is not None:
            yield solved
        return
    relaxed = relax(kernels, budget_bytes=budget_bytes)
    if relaxed is not None:
        for threshold in _THRESHOLDS:
            yield two_phase(kernels, relaxed.kept > threshold)


def _kernels(problem: Problem) -> tuple[Kernels, tuple[int, ...]]:
    """The kernels of a step, in order, and the op of each."""
    # Complexity: the refusal of large steps, then one line for each field of `Kernels`.
    graph, written_values = problem.graph, problem.fusion.materialised
    made = tuple(op.id for op in graph.ops if op.effects or not written_values.isdisjoint(op.writes))
    if len(made) > MOST_KERNELS:
        raise TooLargeError(
            'solve(strategy="checkmate") is a linear programme with a square of unknowns.',
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
