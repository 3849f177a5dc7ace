"""The search for one budget: candidates from a pool are compiled, until none is expected to be better.

Two rules choose what is compiled next:

1. While compiles are left: the fastest candidate that is expected to fit, and to be faster than the best plan. If there
   is none, and a plan other than the step as written fits, the candidate nearest to the budget that may fit and be
   faster within the model's error.
2. While nothing fits: the one of least expected memory. Before a budget is refused, those that should fit are
   compiled, and the smallest ones, and plans near to these, however many compiles there were: the model does not know
   which compiles smallest.

What is expected of a candidate is what the model predicts, corrected by what the compiler said of others
(`candidate_pool`). All plans that count were compiled for this budget: the answer does not depend on earlier questions.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from jaxckpt import ir
from jaxckpt._units import format_bytes
from jaxckpt.compiler import most_compiles
from jaxckpt.planner.candidate_pool import Candidate, CandidatePool, Generator, is_unplanned
from jaxckpt.planner.limits import Limits
from jaxckpt.planner.model_error import CompiledPlan
from jaxckpt.planner.refusals import infeasible
from jaxckpt.planner.user_plan import Attempt, Plan

if TYPE_CHECKING:
    from jaxckpt.planner.planner import Planner

_LIMITS = Limits()
_MISSES = 3
"""While nothing fits, a generator with so many plans that were compiled and too large comes after all others.

In `equilibrium-1` of the battery the solver's plans recompute all stages from the first one, and are up to 54% larger
than predicted: with all compiles for them, the plan of a budget was 4.7% slower than `jax.checkpoint`."""


_NEAR = 2
"""So many plans that are changed so that they should fit are compiled before a refusal.

In `dropout-encoder-2` of the battery one of them is 0.1% below a budget that all other plans miss by 0.4% and more."""


class BudgetSearch:
    """One budget's search.

    Args:
      planner: Compiles, and remembers what it has compiled.
      budget: The budget as the user wrote it.
      limit_bytes: The budget in bytes.
      generators: Propose candidates.
      most: The most compiles; before a refusal, plans that should fit and the smallest ones are compiled beyond it.
      strategy: The strategy as the user named it, for the refusal.
      limits: What counts as faster.
    """

    def __init__(
        self,
        planner: "Planner",
        budget: object,
        limit_bytes: int,
        generators: Sequence[Generator],
        *,
        most: int,
        strategy: str = "optimal",
        limits: Limits = _LIMITS,
    ):
        self.planner, self.budget, self.limit_bytes = planner, budget, limit_bytes
        self.generators, self.most, self.strategy, self.limits = generators, most, strategy, limits
        self.pool = CandidatePool(planner, limit_bytes, limits)
        self.attempts: list[Attempt] = []

    def run(self) -> Plan:
        """Returns the fastest plan within the budget, of those compiled for this budget.

        Raises:
          InfeasibleBudgetError: No compiled plan is within the budget.
        """
        while (found := self._fastest() or self._smallest()) is not None:
            self._compile(*found)
        if (best := self.pool.best) is None and self.strategy == "optimal":
            best = self._smallest_of_all()
        if best is None:
            smallest = min(self.pool.compiled, key=lambda c: c.footprint.total_bytes).footprint
            floor = self.planner.floor_of(smallest)
            raise infeasible(
                self.budget,
                self.limit_bytes,
                smallest,
                floor,
                target=self.planner.target.name,
                strategy=self.strategy,
            )
        return self.planner.as_plan(
            best, budget_bytes=self.limit_bytes, notes=tuple(self._notes(best)), attempts=tuple(self.attempts)
        )

    def _smallest_of_all(self) -> CompiledPlan | None:
        """The best of the smallest plans of the step, and of plans near to them; None if nothing fits.

        They are compiled before a refusal, which names the smallest total.
        """
        for compiled in self.planner.small_plans():
            if not self.pool.holds(compiled.plan):
                self._compile(compiled.plan, self.generators[-1])
        if self.pool.best is not None:
            return self.pool.best
        last = self._faster(lambda generator: generator.before_refusal(self.pool), float("inf"))
        fitting = (found for found in last if found[0].total_bytes <= self.limit_bytes)
        for candidate, generator in sorted(fitting, key=lambda found: found[0].total_bytes)[:_NEAR]:
            if self.pool.best is None:
                self._compile(candidate.plan, generator)
        return self.pool.best

    def _fastest(self) -> tuple[ir.GraphPlan, Generator] | None:
        """The candidate that should fit in the least time, if that is less than the best plan takes.

        While nothing fits, candidates of a generator with several plans that were too large come after all others.
        Where none should, of those that may within the model's error the one that is nearest to the budget.
        """
        pool, best = self.pool, self.pool.best
        if len(self.attempts) >= self.most:
            return None
        enough_s = float("inf") if best is None else self.limits.faster * pool.step_s(best)
        likely = self._faster(lambda generator: generator.fastest(pool), enough_s)
        fitting = [found for found in likely if found[0].total_bytes <= self.limit_bytes]
        if fitting:
            candidate, generator = min(fitting, key=lambda found: (self._is_misjudged(found[1]), found[0].step_s))
        elif best is None or is_unplanned(best.plan):
            return None
        else:
            unlikely = self._faster(lambda generator: generator.unlikely(pool), enough_s)
            if not unlikely:
                return None
            candidate, generator = min(unlikely, key=lambda found: (self._distance(found[0]), found[0].step_s))
        return candidate.plan, generator

    def _is_misjudged(self, generator: Generator) -> bool:
        """True while nothing fits, if several plans of a generator were compiled."""
        return self.pool.best is None and len(self.pool.of(generator)) >= _MISSES

    def _distance(self, candidate: Candidate) -> int:
        """Bytes between a candidate's expected total and the budget."""
        return abs(candidate.total_bytes - self.limit_bytes)

    def _faster(
        self, candidates: Callable[[Generator], Iterable[Candidate]], enough_s: float
    ) -> list[tuple[Candidate, Generator]]:
        """Candidates that were not compiled and are expected to take less than so many seconds."""
        return [
            (candidate, generator)
            for generator in self.generators
            for candidate in candidates(generator)
            if candidate.step_s < enough_s and not self.pool.holds(candidate.plan)
        ]

    def _smallest(self) -> tuple[ir.GraphPlan, Generator] | None:
        """The plan of least expected memory, while nothing fits; once no compiles are left, of those that should."""
        if (pool := self.pool).best is not None:
            return None
        enough_bytes = sys.maxsize if len(self.attempts) < self.most else self.limit_bytes
        untried = []
        for generator in self.generators:
            error = pool.error(generator)
            expected = (pool.expected(plan, generator, error) for plan in generator.smallest(pool))
            untried += [
                (each, generator)
                for each in expected
                if each.plan.predicted.total_bytes <= enough_bytes and not pool.holds(each.plan)
            ]
        untried.sort(key=lambda found: (found[0].total_bytes, found[0].plan.predicted.total_bytes))
        if (at_once := most_compiles()) > 1:  # the next ones are ready by the time that they are asked for
            self.planner.measure_all(candidate.plan for candidate, _ in untried[:at_once])
        return next(((candidate.plan, generator) for candidate, generator in untried), None)

    def _compile(self, plan: ir.GraphPlan, generator: Generator) -> None:
        was_compiled = self.planner.is_compiled(plan)
        with self.planner.saying(self._attempt(plan)):
            compiled = self.pool.compile(plan, generator)
        self.attempts.append(
            Attempt(
                strategy=plan.strategy,
                predicted_bytes=plan.predicted.total_bytes,
                measured_bytes=compiled.footprint.total_bytes,
                step_s=plan.predicted.step_s,
                compile_s=0.0 if was_compiled else compiled.footprint.compile_s,
            )
        )

    def _attempt(self, plan: ir.GraphPlan) -> str:
        """Words for progress: the attempt's number, its prediction, the budget, and the total of the last attempt."""
        number = len(self.attempts) + 1
        most = f"of at most {self.most}" if number <= self.most else f"before a refusal, beyond {self.most}"
        wanted = (
            f"{format_bytes(plan.predicted.total_bytes)} predicted for a budget of {format_bytes(self.limit_bytes)}"
        )
        last = f", the last took {format_bytes(self.attempts[-1].measured_bytes)}" if self.attempts else ""
        return f"attempt {number} {most} ({plan.strategy}: {wanted}{last})"

    def _notes(self, best: CompiledPlan) -> Iterator[str]:
        if is_unplanned(best.plan):
            yield (
                f"The step fits as it is ({format_bytes(best.footprint.total_bytes)} of"
                f" {format_bytes(self.limit_bytes)}): everything is saved, nothing is recomputed."
            )
        for tiling in best.plan.loop_tilings:
            yield (
                f"No plan of loop {tiling.loop} as it is was within the budget. The loop is tiled (nested):"
                f" {tiling.outer} groups of {tiling.inner} iterations, which run once more before their backward."
            )
