"""The search for one budget: what total to ask of the solver, so that the compiled total is the budget.

The model is asked for the budget itself first. Where the compiled total differs, the next question is moved by the
difference; once one plan was too large and another one fits, it is interpolated between the two. Where
that leaves memory unused, the last compiles are for plans that decide differently for the last turns of loops
(`stretching`). Where nothing fits, no plan is left out that should: those of least memory are compiled however many
compiles there were, and one is left for a search over nested loops (`nesting`). Where a program is
much slower than the model said, the model is not trusted to tell two good plans apart, and the best one of another cut
is compiled too.

Read after `planner`, whose searches these are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from jaxckpt import ir
from jaxckpt._units import format_bytes
from jaxckpt.compiler import Footprint
from jaxckpt.planner.floor import floor_of
from jaxckpt.planner.loop_split import Bracket, LoopSplitter, MixPoint, PlanFigures
from jaxckpt.planner.loop_tiling import TilingSolver
from jaxckpt.planner.plan import Attempt, Plan
from jaxckpt.planner.refusals import infeasible
from jaxckpt.solve import OptimalSolver, StrategySolver

if TYPE_CHECKING:
    from jaxckpt.planner.planner import Planner

_WELL_USED = 0.985
"""A plan that takes at least this share of what the budget leaves for temporaries is not tried to be bettered."""
_MARGIN = 0.001
"""Taken off the budget, as a share of it, when the model is corrected by a measured difference."""
_MARGINS = (_MARGIN, 0.02, 0.1)
"""The same after corrections of which the compiler hardly took notice: none, one, more."""
_NOTICED = 0.5
"""The share of what is asked less that a compiled total must be smaller by."""
_NESTS = 3
"""Of fewer compiles none is left for nested loops."""
_HOPELESS = 1.05
"""Where the smallest plan takes so many times the temporaries that the budget allows, the others are not tried."""
_SLOWER = 1.05
"""A plan that takes so many times the seconds that it should is held against one of another cut."""


@dataclass(frozen=True, slots=True)
class CompiledPlan:
    """A plan with what the compiler says of it."""

    plan: ir.GraphPlan
    footprint: Footprint

    def fits(self, limit_bytes: int) -> bool:
        """Whether it is within a budget, bytes per device."""
        return self.footprint.total_bytes <= limit_bytes


class BudgetSearch:
    """One budget's search.

    Args:
      planner: Compiles, and remembers what it has compiled.
      budget: As the user said it.
      limit_bytes: The same in bytes.
      solver: What to ask.
      earlier: Attempts of searches before, for the plan's list.
      most: How many compiles.
      nesting: What another search asks where all plans of this one are too large: a compile is left for it.
      off_bytes: How many bytes the model's figures are expected to be too small.
    """

    def __init__(
        self,
        planner: "Planner",
        budget: object,
        limit_bytes: int,
        solver: OptimalSolver | StrategySolver | TilingSolver,
        earlier: Sequence[Attempt] = (),
        *,
        most: int,
        nesting: TilingSolver | None = None,
        off_bytes: int = 0,
    ):
        self.planner = planner
        self.most = most
        self.tiling_solver = nesting
        self.off_bytes = off_bytes
        self.earlier = earlier
        self.solver = solver
        self.budget = budget
        self.limit_bytes = limit_bytes
        self.attempts: list[Attempt] = []
        self.tried: list[CompiledPlan] = []
        self.fitting: tuple[int, int] | None = None
        self.too_large: tuple[int, int] | None = None
        """The largest question (and its compiled total) that fits, and the smallest that does not, bytes."""
        self.unnoticed = 0
        """How often less was asked and the compiled total was hardly smaller."""

    def run(self) -> Plan:
        """The fastest plan that was compiled, for this budget or before, and is within it.

        Raises:
          InfeasibleBudgetError: None is.
        """
        while len(self.attempts) < self.most - self._reserved:
            asked_bytes = self._next_question()
            plan = self._answer(asked_bytes)
            if plan is None:
                break
            if plan in self.solver.min_memory_plans:  # it answers no question but its own
                asked_bytes = plan.predicted.total_bytes
            candidate = self._try(plan, asked_bytes=asked_bytes)
            if self._good_enough(candidate) or self._is_hopeless(candidate):
                break
        if self._stretching is not None:
            self._stretch(self._stretching)
        rival = self._rival()
        if rival is not None and len(self.attempts) < self.most:
            self._try(rival, asked_bytes=rival.predicted.total_bytes)
        for plan in self._promising:
            if self._best() is None:
                self._try(plan, asked_bytes=plan.predicted.total_bytes)
        return self._finish()

    @property
    def _promising(self) -> list[ir.GraphPlan]:
        """Plans of least memory that should fit and were not tried."""
        resorts = (plan for plan in self.solver.min_memory_plans if plan.predicted.total_bytes <= self.limit_bytes)
        return [plan for plan in resorts if not self._was_tried(plan)]

    @cached_property
    def _stretching(self) -> LoopSplitter | None:
        """What mixes plans, where there are loops to split.

        For TPUs there are none: two loops were seen to take 1.4 times the temporaries of one with the same decisions.
        """
        if not isinstance(self.solver, OptimalSolver) or self.planner.target.platform == "tpu":
            return None
        stretching = self.planner.loop_splitter(self.solver)
        return stretching if stretching.turns else None

    @property
    def _reserved(self) -> int:
        """Compiles that are left: once a plan fits, for other decisions in some turns, or for a plan of another cut.

        Where none fits yet, one is left for nested loops.
        """
        if self.fitting is None:
            return int(self._may_nest)
        return int(self._stretching is not None or self._rival() is not None)

    @property
    def _may_nest(self) -> bool:
        """Whether it helps to nest loops; not asked before something was compiled and is too large."""
        return bool(self.tiling_solver and self.tried and self.most >= _NESTS and self.tiling_solver.min_memory_plans)

    def _is_hopeless(self, candidate: CompiledPlan) -> bool:
        """Whether a plan of least memory is far too large, so that compiles are better spent on nested loops.

        Not while another one is left that should fit: which of them a compiler makes smallest is not known.
        """
        if not self._may_nest or self.fitting or candidate.plan not in self.solver.min_memory_plans or self._promising:
            return False
        fixed_bytes = self.planner.fixed_bytes
        return candidate.footprint.total_bytes - fixed_bytes > _HOPELESS * (self.limit_bytes - fixed_bytes)

    def _stretch(self, stretching: LoopSplitter) -> None:
        """Fills what the best plan leaves unused with the decisions of a larger one for some turns."""
        pair: Bracket | None = None
        aimed_bytes = self.limit_bytes - int(_MARGIN * self.limit_bytes)
        while len(self.attempts) < self.most:
            best = self._best()
            if best is None or self._good_enough(best):
                break
            pair = pair or stretching.pair([self._known(c) for c in self._candidates()], self.limit_bytes)
            filled = None if pair is None else stretching.filled(pair, aimed_bytes)
            if pair is None or filled is None or self._was_tried(filled[1]):
                break
            turns, plan = filled
            candidate = self._try(plan, asked_bytes=plan.predicted.total_bytes)
            pair = pair.with_known(MixPoint(turns=turns, known=self._known(candidate)), self.limit_bytes)

    def _rival(self) -> ir.GraphPlan | None:
        """The plan of another cut, not tried yet, where the best one is slower than the model can explain."""
        best = self._best()
        if best is None or self.fitting is None or not isinstance(self.solver, OptimalSolver):
            return None
        if self.planner.step_s_with_stalls(best) <= _SLOWER * best.plan.predicted.step_s:
            return None
        rival = self.solver.alternative_plan(best.plan, self.fitting[0] - self.planner.fixed_bytes)
        return None if rival is None or self._was_tried(rival) else rival

    def _known(self, candidate: CompiledPlan) -> PlanFigures:
        step_s = self.planner.step_s_with_stalls(candidate)
        return PlanFigures(plan=candidate.plan, total_bytes=candidate.footprint.total_bytes, step_s=step_s)

    def _next_question(self) -> int:
        margin_bytes = int(_MARGINS[min(self.unnoticed, len(_MARGINS) - 1)] * self.limit_bytes)
        if self.fitting and self.too_large:
            (low, low_total), (high, high_total) = self.fitting, self.too_large
            share = (self.limit_bytes - low_total) / max(1, high_total - low_total)
            return low + int((high - low) * min(0.8, max(0.2, share)))
        if self.too_large:
            asked_bytes, total_bytes = self.too_large
            return asked_bytes - (total_bytes - self.limit_bytes) - margin_bytes
        if self.fitting:
            asked_bytes, total_bytes = self.fitting
            return asked_bytes + (self.limit_bytes - total_bytes) - margin_bytes
        return self.limit_bytes - self.off_bytes

    def _answer(self, asked_bytes: int) -> ir.GraphPlan | None:
        """The plan for a question; a last resort where the solver knows no less.

        With the last compile too, if none is left that should fit: those are compiled anyway before a refusal. None if
        nothing new is left.
        """
        solver = self.solver
        resorts = [plan for plan in solver.min_memory_plans if not self._was_tried(plan)]
        left = self.most - len(self.attempts) - (0 if self.fitting else self._reserved)
        if self.fitting or self._promising or left > min(1, len(resorts)):
            temp_bytes = asked_bytes - self.planner.fixed_bytes
            plan = solver.solve(temp_bytes, allow_empty=self._may_be_unplanned())
            if not self._was_tried(plan):
                return plan
        return None if self.fitting or not resorts else resorts[0]

    def _was_tried(self, plan: ir.GraphPlan) -> bool:
        return any(plan == candidate.plan for candidate in self.tried)

    def _may_be_unplanned(self) -> bool:
        """Whether the step as it is might fit: nothing is known yet, or it is known to fit."""
        unplanned = self.solver.empty_plan
        if not self.planner.is_compiled(unplanned):
            return True
        return self.planner.measure(unplanned).footprint.total_bytes <= self.limit_bytes

    def _try(self, plan: ir.GraphPlan, *, asked_bytes: int) -> CompiledPlan:
        known = self.planner.is_compiled(plan)
        candidate = self.planner.measure(plan)
        total_bytes = candidate.footprint.total_bytes
        self.attempts.append(
            Attempt(
                strategy=plan.strategy,
                predicted_bytes=plan.predicted.total_bytes,
                measured_bytes=total_bytes,
                step_s=plan.predicted.step_s,
                compile_s=0.0 if known else candidate.footprint.compile_s,
            )
        )
        self.tried.append(candidate)
        if total_bytes <= self.limit_bytes:
            self.fitting = max(self.fitting or (0, 0), (asked_bytes, total_bytes))
        else:  # every question down to what the plan was predicted to take has this answer
            question = (min(asked_bytes, plan.predicted.total_bytes), total_bytes)
            before = self.too_large or question
            if before[1] - question[1] < _NOTICED * (before[0] - question[0]):
                self.unnoticed += 1
            self.too_large = min(before, question)
        return candidate

    def _good_enough(self, candidate: CompiledPlan) -> bool:
        total_bytes = candidate.footprint.total_bytes
        if total_bytes > self.limit_bytes:
            return False
        if not candidate.plan.decisions and not candidate.plan.loop_tilings:
            return True
        fixed_bytes = self.planner.fixed_bytes
        return total_bytes - fixed_bytes >= _WELL_USED * (self.limit_bytes - fixed_bytes)

    def _finish(self) -> Plan:
        best = self._best()
        if best is None:
            smallest = min(self.tried, key=lambda c: c.footprint.total_bytes).footprint
            floor = floor_of(smallest, self.planner.graph, step=self.planner.traced.name)
            raise infeasible(self.budget, self.limit_bytes, smallest, floor, target=self.planner.target.name)
        return self.planner.as_plan(
            best,
            budget_bytes=self.limit_bytes,
            notes=tuple(self._notes(best)),
            attempts=(*self.earlier, *self.attempts),
        )

    def _candidates(self) -> tuple[CompiledPlan, ...]:
        """What was compiled for this budget, and before for others."""
        others = self.planner.candidates() if isinstance(self.solver, OptimalSolver) else ()
        return tuple({candidate.plan: candidate for candidate in (*self.tried, *others)}.values())

    def _best(self) -> CompiledPlan | None:
        """The fastest of them within the budget."""
        fitting = [c for c in self._candidates() if c.fits(self.limit_bytes)]
        return min(fitting, key=lambda c: (self.planner.step_s_with_stalls(c), c.plan.predicted.step_s), default=None)

    def _notes(self, best: CompiledPlan) -> Iterator[str]:
        if not best.plan.decisions and not best.plan.loop_tilings:
            yield (
                f"The step fits as it is ({format_bytes(best.footprint.total_bytes)} of"
                f" {format_bytes(self.limit_bytes)}): everything is saved, nothing is recomputed."
            )
        for nest in best.plan.loop_tilings:
            yield (
                f"No plan of loop {nest.loop} as it is was within the budget. It is nested: {nest.outer} groups of"
                f" {nest.inner} turns, which run once more before their backward."
            )
