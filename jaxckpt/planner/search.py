"""The search for one budget: finds the total to ask of the solver so that the compiled total is the budget.

1. The first question is the budget itself.
2. Where the compiled total differs, the next question is moved by the difference. Once one plan is too large and
   another one fits, the next question is interpolated between the two (a secant search).
3. Where the best plan leaves memory unused, the last compiles are for split loops (`loop_split`).
4. Where the best plan is much slower than predicted, the model cannot rank good plans, and the best plan of another cut
   is compiled too.
5. Where nothing fits, plans of least memory that should fit are compiled however many compiles there were. One compile
   is left for a search over tiled loops (`loop_tiling`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from jaxckpt import ir
from jaxckpt._units import format_bytes
from jaxckpt.compiler import Footprint
from jaxckpt.planner.floor import floor_of
from jaxckpt.planner.loop_split import Bracket, LoopSplitter, MixPoint, PlanFigures
from jaxckpt.planner.loop_tiling import TilingSolver
from jaxckpt.planner.plan import Attempt, Plan
from jaxckpt.planner.refusals import infeasible
from jaxckpt.solve import BudgetSolver, OptimalSolver

if TYPE_CHECKING:
    from jaxckpt.planner.planner import Planner

# No benchmark fixed the exact values below; `python -m benchmarks.frontier` and `python -m benchmarks.loops` show what
# they come to: planned totals against budgets.
_WELL_USED = 0.985
"""The search ends with a plan that takes at least this share of the bytes that the budget leaves for temporaries."""
_MARGIN = 0.001
"""Taken off a corrected question, as a share of the budget: compiled totals do not follow the question exactly."""
_MARGINS = (_MARGIN, 0.02, 0.1)
"""Margins after no, one, and more ineffective corrections: a larger step is needed to reach another plan."""
_EFFECTIVE = 0.5
"""A correction is effective if the compiled total falls by at least this share of the bytes that were asked less."""
_LEAST_COMPILES_TO_TILE = 3
"""Searches of fewer compiles leave none for tiled loops: two are needed to correct the model once."""
_TOO_LARGE = 1.05
"""The search leaves its compiles to tiled loops where a plan of least memory takes more than this many times the
temporaries that the budget allows."""
_TOO_SLOW = 1.05
"""A plan that takes this many times the predicted seconds is compared with one of another cut: in ViT and T5 the model
is off by more than two good plans differ (`python -m benchmarks.frontier`)."""
_FASTER = 0.995
"""A rule's plan is compiled if the model expects at most this share of the best plan's seconds."""


@dataclass(frozen=True, slots=True)
class CompiledPlan:
    """A plan with its compiled footprint."""

    plan: ir.GraphPlan
    footprint: Footprint

    @property
    def model_error_bytes(self) -> int:
        """Compiled minus predicted total: positive where the model predicts too little."""
        return self.footprint.total_bytes - self.plan.predicted.total_bytes

    def fits(self, limit_bytes: int) -> bool:
        """True if the compiled total is within a budget, bytes per device."""
        return self.footprint.total_bytes <= limit_bytes


class _Asked(NamedTuple):
    """A total that the solver was asked for, and the compiled total of its plan."""

    asked_bytes: int
    compiled_bytes: int


class BudgetSearch:
    """One budget's search.

    Args:
      planner: Compiles, and remembers what it has compiled.
      budget: The budget as the user wrote it.
      limit_bytes: The budget in bytes.
      solver: Answers a budget of temporaries with a plan.
      earlier_attempts: Attempts of searches before, for the plan's list.
      most: The most compiles.
      tiling_solver: The solver of the search that follows where no plan of this one fits: a compile is left for it.
      model_error_bytes: Expected model error, taken off the first question.
    """

    def __init__(
        self,
        planner: "Planner",
        budget: object,
        limit_bytes: int,
        solver: BudgetSolver,
        earlier_attempts: Sequence[Attempt] = (),
        *,
        most: int,
        tiling_solver: TilingSolver | None = None,
        model_error_bytes: int = 0,
    ):
        self.planner = planner
        self.most = most
        self.tiling_solver = tiling_solver
        self.model_error_bytes = model_error_bytes
        self.earlier_attempts = earlier_attempts
        self.solver = solver
        self.budget = budget
        self.limit_bytes = limit_bytes
        self.attempts: list[Attempt] = []
        self.tried: list[CompiledPlan] = []
        self.fitting: _Asked | None = None
        """The largest question whose plan fits."""
        self.too_large: _Asked | None = None
        """The smallest question whose plan does not fit."""
        self.ineffective_corrections = 0
        """How often less was asked for and the compiled total was hardly smaller."""

    def run(self) -> Plan:
        """Returns the fastest plan within the budget, of those compiled for this budget or before.

        Raises:
          InfeasibleBudgetError: No compiled plan is within the budget.
        """
        self._correct()
        if self._splitter is not None:
            self._split_loops(self._splitter)
        for candidate in (self._alternative, self._faster_rule):
            plan = candidate() if len(self.attempts) < self.most else None
            if plan is not None:
                self._compile(plan, asked_bytes=plan.predicted.total_bytes)
        while self._best() is None and (feasible := self._untried_feasible or self._feasible_rules()):
            self._compile(feasible[0], asked_bytes=feasible[0].predicted.total_bytes)
        return self._finish()

    def _correct(self) -> None:
        """Asks, compiles and corrects the question, until a plan uses the budget well or no compile is left for it."""
        while len(self.attempts) < self.most - self._reserved_compiles:
            asked_bytes = self._next_question()
            plan = self._plan_for(asked_bytes)
            if plan is None:
                break
            if plan in self.solver.min_memory_plans:  # such a plan answers no question but its own
                asked_bytes = plan.predicted.total_bytes
            compiled = self._compile(plan, asked_bytes=asked_bytes)
            if self._good_enough(compiled) or self._should_give_up(compiled):
                break

    @property
    def _untried_feasible(self) -> list[ir.GraphPlan]:
        """Plans of least memory that should fit and were not tried."""
        feasible = (plan for plan in self.solver.min_memory_plans if plan.predicted.total_bytes <= self.limit_bytes)
        return [plan for plan in feasible if not self._was_tried(plan)]

    @cached_property
    def _splitter(self) -> LoopSplitter | None:
        """Mixes plans, where there are loops to split.

        None for TPUs: two loops were seen to take 1.4 times the temporaries of one with the same decisions.
        """
        if not isinstance(self.solver, OptimalSolver) or self.planner.target.platform == "tpu":
            return None
        splitter = self.planner.loop_splitter(self.solver)
        return splitter if splitter.iterations else None

    @property
    def _reserved_compiles(self) -> int:
        """Compiles that corrections leave.

        Once a plan fits: one for a split loop or a plan of another cut. While none fits: one for tiled loops.
        """
        if self.fitting is None:
            return int(self._may_tile)
        return int(self._splitter is not None or self._alternative() is not None)

    @property
    def _may_tile(self) -> bool:
        """True if tiled loops may help; False before anything was compiled: tiling is costly to solve for."""
        enough = self.most >= _LEAST_COMPILES_TO_TILE
        return bool(self.tiling_solver and self.tried and enough and self.tiling_solver.min_memory_plans)

    def _should_give_up(self, compiled: CompiledPlan) -> bool:
        """True if a plan of least memory is far too large, so that compiles are better spent on tiled loops.

        False while another plan of least memory should fit: the model does not know which of them compiles smallest.
        """
        is_smallest = compiled.plan in self.solver.min_memory_plans
        if not self._may_tile or self.fitting or not is_smallest or self._untried_feasible:
            return False
        fixed_bytes = self.planner.fixed_bytes
        return compiled.footprint.total_bytes - fixed_bytes > _TOO_LARGE * (self.limit_bytes - fixed_bytes)

    def _split_loops(self, splitter: LoopSplitter) -> None:
        """Fills what the best plan leaves unused with the decisions of a larger plan for some iterations."""
        bracket: Bracket | None = None
        aimed_bytes = self.limit_bytes - int(_MARGIN * self.limit_bytes)
        while len(self.attempts) < self.most:
            best = self._best()
            if best is None or self._good_enough(best):
                break
            bracket = bracket or splitter.bracket([self._figures(c) for c in self._candidates()], self.limit_bytes)
            mix = None if bracket is None else splitter.largest_feasible_mix(bracket, aimed_bytes)
            if bracket is None or mix is None or self._was_tried(mix[1]):
                break
            iterations, plan = mix
            compiled = self._compile(plan, asked_bytes=plan.predicted.total_bytes)
            point = MixPoint(iterations=iterations, figures=self._figures(compiled))
            bracket = bracket.narrowed(point, self.limit_bytes)

    def _alternative(self) -> ir.GraphPlan | None:
        """The fastest untried plan of another cut, where the best plan is slower than the model can explain."""
        best = self._best()
        if best is None or self.fitting is None or not isinstance(self.solver, OptimalSolver):
            return None
        if self.planner.step_s_with_stalls(best) <= _TOO_SLOW * best.plan.predicted.step_s:
            return None
        plan = self.solver.alternative_plan(best.plan, self.fitting.asked_bytes - self.planner.fixed_bytes)
        return None if plan is None or self._was_tried(plan) else plan

    def _faster_rule(self) -> ir.GraphPlan | None:
        """The plan of a simple rule that is expected to be faster than the best plan, after more than one compile.

        The first plan of the solver is faster than any rule's, by the model. Where the model was wrong, and the solver
        was asked for less, a rule that should fit as it is may be faster than the solver's next plan.
        """
        best = self._best()
        if best is None or len(self.tried) < 2 or self._good_enough(best):
            return None
        limit_s = _FASTER * best.plan.predicted.step_s
        faster = [plan for plan in self._feasible_rules() if plan.predicted.step_s <= limit_s]
        return min(faster, key=lambda plan: plan.predicted.step_s, default=None)

    def _feasible_rules(self) -> list[ir.GraphPlan]:
        """Plans of simple rules that should fit and were not tried, the smallest first."""
        if not isinstance(self.solver, OptimalSolver):
            return []
        rules = [plan for plan in self.planner.simple_rules if plan.predicted.total_bytes <= self.limit_bytes]
        return sorted(
            (plan for plan in rules if not self._was_tried(plan)), key=lambda plan: plan.predicted.total_bytes
        )

    def _figures(self, compiled: CompiledPlan) -> PlanFigures:
        step_s = self.planner.step_s_with_stalls(compiled)
        return PlanFigures(plan=compiled.plan, total_bytes=compiled.footprint.total_bytes, step_s=step_s)

    def _next_question(self) -> int:
        margin_bytes = int(_MARGINS[min(self.ineffective_corrections, len(_MARGINS) - 1)] * self.limit_bytes)
        if self.fitting and self.too_large:
            (low, low_total), (high, high_total) = self.fitting, self.too_large
            share = (self.limit_bytes - low_total) / max(1, high_total - low_total)
            return low + int((high - low) * min(0.8, max(0.2, share)))
        known = self.too_large or self.fitting
        if known is None:
            return self.limit_bytes - self.model_error_bytes
        return known.asked_bytes + (self.limit_bytes - known.compiled_bytes) - margin_bytes

    def _plan_for(self, asked_bytes: int) -> ir.GraphPlan | None:
        """The plan for a question; a plan of least memory where the solver has no new plan; None if none is left.

        The last compile is for the question too if no plan of least memory should fit: those that should are compiled
        before a refusal in any case.
        """
        solver = self.solver
        smallest = [plan for plan in solver.min_memory_plans if not self._was_tried(plan)]
        left = self.most - len(self.attempts) - (0 if self.fitting else self._reserved_compiles)
        if self.fitting or self._untried_feasible or left > min(1, len(smallest)):
            temp_bytes = asked_bytes - self.planner.fixed_bytes
            plan = solver.solve(temp_bytes, allow_empty=self._may_be_unplanned())
            if not self._was_tried(plan):
                return plan
        return None if self.fitting or not smallest else smallest[0]

    def _was_tried(self, plan: ir.GraphPlan) -> bool:
        return any(plan == compiled.plan for compiled in self.tried)

    def _may_be_unplanned(self) -> bool:
        """True if the step as it is may fit: it was not compiled, or is compiled and fits."""
        unplanned = self.solver.empty_plan
        if not self.planner.is_compiled(unplanned):
            return True
        return self.planner.measure(unplanned).fits(self.limit_bytes)

    def _compile(self, plan: ir.GraphPlan, *, asked_bytes: int) -> CompiledPlan:
        """Compiles a plan, and narrows the questions that fit and those that do not."""
        was_compiled = self.planner.is_compiled(plan)
        compiled = self.planner.measure(plan)
        total_bytes = compiled.footprint.total_bytes
        self.attempts.append(
            Attempt(
                strategy=plan.strategy,
                predicted_bytes=plan.predicted.total_bytes,
                measured_bytes=total_bytes,
                step_s=plan.predicted.step_s,
                compile_s=0.0 if was_compiled else compiled.footprint.compile_s,
            )
        )
        self.tried.append(compiled)
        if total_bytes <= self.limit_bytes:
            self.fitting = max(self.fitting or _Asked(0, 0), _Asked(asked_bytes, total_bytes))
        else:
            # The solver gives this plan for every question from its predicted total up to `asked_bytes`.
            asked = _Asked(min(asked_bytes, plan.predicted.total_bytes), total_bytes)
            before = self.too_large or asked
            asked_less_bytes = before.asked_bytes - asked.asked_bytes
            if before.compiled_bytes - asked.compiled_bytes < _EFFECTIVE * asked_less_bytes:
                self.ineffective_corrections += 1
            self.too_large = min(before, asked)
        return compiled

    def _good_enough(self, compiled: CompiledPlan) -> bool:
        if not compiled.fits(self.limit_bytes):
            return False
        if _is_unplanned(compiled.plan):
            return True
        fixed_bytes = self.planner.fixed_bytes
        return compiled.footprint.total_bytes - fixed_bytes >= _WELL_USED * (self.limit_bytes - fixed_bytes)

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
            attempts=(*self.earlier_attempts, *self.attempts),
        )

    def _candidates(self) -> tuple[CompiledPlan, ...]:
        """Plans that were compiled for this budget, and before for others."""
        others = self.planner.candidates() if isinstance(self.solver, OptimalSolver) else ()
        return tuple({compiled.plan: compiled for compiled in (*self.tried, *others)}.values())

    def _best(self) -> CompiledPlan | None:
        """The fastest candidate within the budget."""
        fitting = [c for c in self._candidates() if c.fits(self.limit_bytes)]
        return min(fitting, key=lambda c: (self.planner.step_s_with_stalls(c), c.plan.predicted.step_s), default=None)

    def _notes(self, best: CompiledPlan) -> Iterator[str]:
        if _is_unplanned(best.plan):
            yield (
                f"The step fits as it is ({format_bytes(best.footprint.total_bytes)} of"
                f" {format_bytes(self.limit_bytes)}): everything is saved, nothing is recomputed."
            )
        for tiling in best.plan.loop_tilings:
            yield (
                f"No plan of loop {tiling.loop} as it is was within the budget. The loop is tiled (nested):"
                f" {tiling.outer} groups of {tiling.inner} iterations, which run once more before their backward."
            )


def _is_unplanned(plan: ir.GraphPlan) -> bool:
    """True if a plan leaves the step as it is."""
    return not plan.decisions and not plan.loop_tilings
