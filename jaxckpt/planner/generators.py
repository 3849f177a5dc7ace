"""Generators of candidates for a budget.

Each generator looks at the pool of what was compiled for a budget so far, and proposes what may be compiled next: the
fastest plan of its kind that should fit, and its plans of least memory for a budget that nothing else meets.

Read after `candidate_pool`.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from jaxckpt import ir
from jaxckpt.planner.candidate_pool import Candidate, CandidatePool, Generator, is_unplanned
from jaxckpt.planner.loop_split import Bracket, LoopSplitter, MixPoint, PlanFigures
from jaxckpt.planner.model_error import CompiledPlan, ModelError
from jaxckpt.solve import BudgetSolver, OptimalSolver

if TYPE_CHECKING:
    from jaxckpt.planner.planner import Planner

ERROR_FACTOR = 2.0
"""The error of the prediction of a plan that was not compiled over that of the compiled plans, at most: before a budget
is refused, and for seconds.

On steps with dropout the totals are off by 16% and 10%: with 1 the planner compiles no rule, and is 5% slower than one.
"""
EXCESS_BY_GAIN = 0.5
"""A rule that may be faster by a share is compiled though it is predicted too large by this part of the share.

XLA makes one in twenty of the rules' plans 12% smaller than predicted. In `graph-attention-2` of the battery two plans
were predicted to 1%; `every:2` was predicted 10% too large, fits, and is 11% faster.
"""
NEAR_MISS = 0.1
"""A compiled plan that takes at most this share of the budget more is changed so that it should fit.

`layers:dots` of 16 layers with dropout took 1,688 bytes too many of 9.02 GiB, and was 3% faster than the best plan."""


def least_bytes(plan: ir.GraphPlan, error: float) -> float:
    """The least compiled total to be expected of a plan, by the largest error of the compiled plans, a share."""
    return (1 - ERROR_FACTOR * error) * plan.predicted.total_bytes


class SolverPlans(Generator):
    """Plans of a solver.

    Args:
      solver: Makes the solver, or looks it up.
      applies: True for the pools that it has candidates for.
      inherits: True if the error of other generators is expected of it too.
    """

    def __init__(
        self,
        solver: Callable[[], BudgetSolver],
        applies: Callable[[CandidatePool], bool] = lambda _: True,
        *,
        inherits: bool = False,
    ):
        self._solver, self._applies, self._inherits = solver, applies, inherits

    def fastest(self, pool: CandidatePool) -> Iterator[Candidate]:
        """The plan for the predicted total at which the compiled one should be the budget."""
        if self._applies(pool) and not pool.is_well_used(self):
            error = pool.error(self, inherits=self._inherits)
            temp_bytes = pool.question(self, error) - pool.planner.fixed_bytes
            plan = self._solver().solve(temp_bytes, allow_empty=not pool.unplanned_is_too_large)
            yield pool.expected(plan, self, error)

    def unlikely(self, pool: CandidatePool) -> Iterator[Candidate]:
        """Plans of least memory that fit if the model predicts too much."""
        if pool.of(self) or not self._applies(pool):
            return
        for plan in self._solver().min_memory_plans:
            if (1 - pool.overprediction) * _total_bytes(plan) <= pool.limit_bytes:
                yield Candidate(plan, _total_bytes(plan), self.slowdown(pool) * plan.predicted.step_s)

    def smallest(self, pool: CandidatePool) -> Iterable[ir.GraphPlan]:
        """The solver's plans of least memory."""
        return self._solver().min_memory_plans if self._applies(pool) else ()


class Alternatives(Generator):
    """Plans of nearly the predicted seconds of the best plan, where the best plan compiles slower than predicted.

    The model may be off for the best plan alone, in the seconds of kernels or in waits for copies: where XLA starts
    copies depends on the cut.
    """

    def __init__(self, solver: OptimalSolver, source: SolverPlans):
        self._solver, self._source = solver, source

    @property
    def source(self) -> Generator:
        """The plans of the same solver."""
        return self._source

    def fastest(self, pool: CandidatePool) -> Iterator[Candidate]:
        """The solver's plan of another cut for this budget, and its fastest plan of less memory than the best plan."""
        best = pool.best
        if best is None or not self._is_unexplained(pool, best):
            return
        error = ModelError(pool.compiled)
        best_bytes = best.plan.predicted.temp_bytes
        asked_bytes = pool.question(self, error) - pool.planner.fixed_bytes
        other_cut = self._solver.alternative_plan(best.plan, max(asked_bytes, best_bytes))
        for plan in (other_cut, self._solver.solve(best_bytes - 1, allow_empty=False)):
            if plan is not None:
                yield pool.expected(plan, self, error)

    def _is_unexplained(self, pool: CandidatePool, best: CompiledPlan) -> bool:
        predicted, step_s = best.plan.predicted, pool.step_s(best)
        waits_s = step_s - best.step_s - predicted.stall_s
        return step_s > pool.limits.too_slow * predicted.step_s or waits_s > (1 - pool.limits.faster) * step_s

    def slowdown(self, pool: CandidatePool) -> float:
        """That of the kernels of the solver's last plan."""
        own = pool.of(self)
        return pool.kernel_slowdown(own[-1]) if own else pool.default_slowdown


class SimpleRules(Generator):
    """Plans of the rules that people write by hand.

    Until a rule was compiled, the model's order of rules and other plans is not trusted. The step as written does less
    work than any rule: where it is the best plan, seconds of rules are not reduced.
    """

    def fastest(self, pool: CandidatePool) -> Iterator[Candidate]:
        """All rules, once a plan was compiled: the model's figures are corrected by what compiled plans were."""
        if pool.compiled:
            share = self._trusted_share(pool)
            for plan, total_bytes, step_s in self._expected(pool):
                yield Candidate(plan, total_bytes, share * step_s)

    def unlikely(self, pool: CandidatePool) -> Iterator[Candidate]:
        """Rules that may fit if the model predicts too much; their seconds may be less than expected, too.

        A few plans agree by chance: seconds are taken as off by at least the share by which a plan has to be faster,
        and bytes the more, the faster the rule is expected to be.
        """
        spread = max(1 - pool.limits.faster, pool.seconds_spread)
        step_share = self._trusted_share(pool) * (1 - ERROR_FACTOR * spread)
        best_s = None if pool.best is None else pool.step_s(pool.best)
        for plan, total_bytes, step_s in self._expected(pool):
            gain = 1 - step_s / best_s if best_s else 0.0
            share = 1 - max(pool.overprediction, EXCESS_BY_GAIN * gain)
            if share * min(total_bytes, plan.predicted.total_bytes) <= pool.limit_bytes:
                yield Candidate(plan, total_bytes, step_share * step_s)

    def _trusted_share(self, pool: CandidatePool) -> float:
        """The share of the expected seconds that a rule may take.

        Until a rule was compiled the model may be off for rules by as much as it was for the compiled plans: in an MLP
        with batch normalisation the best plan was 7% slower than predicted, and `every:2` 4% faster.
        """
        if pool.of(self) or (pool.best is not None and is_unplanned(pool.best.plan)):
            return 1.0
        return min(pool.limits.rules_order, 1 / min(map(pool.kernel_slowdown, pool.compiled), default=1.0))

    def slowdown(self, pool: CandidatePool) -> float:
        """That of the compiled plan which is fastest compared with its prediction.

        What XLA makes of one rule says little of the seconds of others. That all plans are slower than predicted is
        known once a rule was compiled too.
        """
        return min(map(pool.kernel_slowdown, pool.compiled)) if pool.of(self) else pool.default_slowdown

    def _expected(self, pool: CandidatePool) -> Iterator[Candidate]:
        """All rules, but those whose figures are known from a plan that fits: these are not faster."""
        error = pool.error(self)
        rules = (plan for plan in pool.planner.simple_rules if not pool.is_as_good(plan))
        return (pool.expected(plan, self, error) for plan in rules)

    def smallest(self, pool: CandidatePool) -> Iterable[ir.GraphPlan]:
        """Rules whose plans fit if the model predicts too much by more than it was off for others."""
        rules, error = pool.planner.simple_rules, pool.bytes_error
        return [plan for plan in rules if least_bytes(plan, error) <= pool.limit_bytes]


class NearMisses(Generator):
    """Compiled plans that are faster than the best one and a little too large, changed so that they should fit.

    A plan of the solver can also be asked for with less memory (`SolverPlans`), the plan of a rule only be changed. A
    local search changes it in many places, and may lose what the compiler does better than predicted with the plan of
    the rule. Where it is too large again, the plan is changed in one place. On large graphs there is no local search
    (`Effort.op_runs`), and so no candidate.
    """

    def __init__(self, solver: OptimalSolver):
        self._changes = solver.neighbour, solver.nearest
        self._changed: dict[ir.GraphPlan, list[ir.GraphPlan]] = {}

    def fastest(self, pool: CandidatePool) -> Iterator[Candidate]:
        """For each such plan a neighbour of as many bytes less as it was too large; once that is too large, another."""
        enough_s = sys.maxsize if pool.best is None else pool.step_s(pool.best)
        too_large = {compiled.plan for compiled in pool.compiled if not compiled.fits(pool.limit_bytes)}
        for compiled in pool.compiled:
            plan, excess_bytes = compiled.plan, compiled.footprint.total_bytes - pool.limit_bytes
            is_near = 0 < excess_bytes <= NEAR_MISS * pool.limit_bytes
            is_changed = any(plan in plans for plans in self._changed.values())
            is_of_step = not (any(plan.transformations) or plan.host_arguments)
            if not (is_near and is_of_step) or pool.step_s(compiled) >= enough_s or is_changed:
                continue
            asked_bytes = plan.predicted.temp_bytes - excess_bytes
            changed = self._changed.setdefault(plan, [])
            if len(changed) < len(self._changes) and too_large.issuperset(changed):
                changed.append(self._changes[len(changed)](plan, asked_bytes))
            if changed[-1].predicted.temp_bytes <= asked_bytes:
                total_bytes = changed[-1].predicted.total_bytes + compiled.model_error_bytes
                yield Candidate(changed[-1], total_bytes, pool.slowdown(compiled) * changed[-1].predicted.step_s)

    def before_refusal(self, pool: CandidatePool) -> Iterable[Candidate]:
        """The same: in the end all plans of little memory were compiled, too."""
        return self.fastest(pool)


class SplitLoops(Generator):
    """Mixtures of two plans of a solver, one for the first iterations of the loops and one for the rest."""

    def __init__(self, splitter: LoopSplitter):
        self._splitter = splitter
        self._bracket: Bracket | None = None
        self._mixes: dict[ir.GraphPlan, int] = {}
        """Iterations of the larger plan, by mixture."""

    def fastest(self, pool: CandidatePool) -> Iterator[Candidate]:
        """The mixture of most iterations of the larger plan that is expected to fit."""
        if pool.best is None:
            return
        figures = {c.plan: _figures(pool, c) for c in pool.compiled}
        if figures.keys().isdisjoint(self._mixes):  # a plan that was compiled since may be a better end
            self._bracket = self._splitter.bracket(list(figures.values()), pool.limit_bytes)
        if self._bracket is None:
            return
        bracket = self._bracket
        for plan, iterations in self._mixes.items():
            if plan in figures:
                bracket = bracket.narrowed(MixPoint(iterations=iterations, figures=figures[plan]), pool.limit_bytes)
        temp_bytes = pool.limit_bytes - self.fixed_bytes(pool)
        aimed_bytes = pool.limit_bytes - int(pool.limits.margins[0] * temp_bytes)
        mix = self._splitter.largest_feasible_mix(bracket, aimed_bytes)
        if mix is not None:
            iterations, plan = mix
            self._mixes[plan] = iterations
            total_bytes = plan.predicted.total_bytes + bracket.model_error_bytes(iterations)
            yield Candidate(plan, total_bytes, bracket.step_s(iterations))


def _figures(pool: CandidatePool, compiled: CompiledPlan) -> PlanFigures:
    return PlanFigures(plan=compiled.plan, total_bytes=compiled.footprint.total_bytes, step_s=pool.step_s(compiled))


def generators_for(planner: "Planner") -> list[Generator]:
    """The generators of candidates for the optimal strategy."""
    solver, tiling, chunking = planner.solver, planner.tiling_solver, planner.chunk_solver

    def moves(pool: CandidatePool) -> bool:
        """True if a plan was compiled that moves something: copies may cost more than the work that they spare."""
        return any(planner.problem.moves(compiled.plan) for compiled in pool.compiled)

    def needs_tiling(pool: CandidatePool) -> bool:
        """True if nothing fits, and no plan of untiled loops should: tiled ones are slow, and costly to solve for."""
        if not pool.compiled or pool.best is not None or tiling is None:
            return False
        untried = (plan for plan in solver.min_memory_plans if not pool.holds(plan))
        return bool(min(map(_total_bytes, untried), default=sys.maxsize) > pool.limit_bytes and tiling.min_memory_plans)

    def needs_memory(pool: CandidatePool) -> bool:
        """True if the step as it is was not found to fit: rows in pieces are not faster than that."""
        return bool(pool.compiled) and (pool.best is None or not is_unplanned(pool.best.plan))

    plans = SolverPlans(lambda: solver)
    found: list[Generator] = [plans, Alternatives(solver, plans)]
    if planner.problem.may_offload and planner.problem.may_partition:
        found.append(SolverPlans(lambda: planner.without_offload, moves))
    if planner.problem.may_move:
        found.append(SolverPlans(lambda: planner.recompute_only, moves))
    # None for TPUs: two loops were seen to take 1.4 times the temporaries of one with the same decisions.
    if planner.target.platform != "tpu" and planner.loop_splitter(solver).iterations:
        found.append(SplitLoops(planner.loop_splitter(solver)))
    if tiling is not None:
        found.append(SolverPlans(lambda: tiling, needs_tiling, inherits=True))
    if chunking is not None:
        found.append(SolverPlans(lambda: chunking, needs_memory))
    if planner.host_state_solver is not None:
        from jaxckpt.planner.host_state import HostStatePlans  # few planners need it

        found += map(HostStatePlans, planner.host_state_solver.for_each_solver)
    return [*found, NearMisses(solver), SimpleRules()]


def _total_bytes(plan: ir.GraphPlan) -> int:
    return plan.predicted.total_bytes
