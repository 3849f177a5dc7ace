"""Plans that were compiled for one budget (the pool), candidates for it, and what each generator of candidates offers.

A candidate is a plan with the bytes and seconds that are expected of it as compiled: what the model predicts, corrected
by what the compiler said of the plans in the pool.

Read after `model_error`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isclose
from statistics import median_low
from typing import TYPE_CHECKING, NamedTuple

from jaxckpt import ir
from jaxckpt.planner.limits import Limits
from jaxckpt.planner.model_error import CompiledPlan, ModelError

if TYPE_CHECKING:
    from jaxckpt.planner.planner import Planner


_SAME_FIGURES = 0.0005
"""A rule is not compiled if its predicted bytes and seconds differ by less than this share from those of a compiled
plan that fits. In the battery no such rule was better than that plan."""


class Candidate(NamedTuple):
    """A plan that may be compiled, with the figures that are expected of it."""

    plan: ir.GraphPlan
    total_bytes: int
    step_s: float


class Generator(ABC):
    """Proposes candidates for one budget."""

    @property
    def source(self) -> "Generator":
        """The generator whose plans have the same errors as those of this one."""
        return self

    def fixed_bytes(self, pool: "CandidatePool") -> int:
        """Bytes of the total that none of these plans changes."""
        return pool.planner.fixed_bytes

    @abstractmethod
    def fastest(self, pool: "CandidatePool") -> Iterable[Candidate]:
        """Candidates that may be the fastest within the budget."""

    def unlikely(self, pool: "CandidatePool") -> Iterable[Candidate]:  # noqa: ARG002
        """Candidates that may be faster than the best plan within the model's error, once none is expected to be."""
        return ()

    def smallest(self, pool: "CandidatePool") -> Iterable[ir.GraphPlan]:  # noqa: ARG002
        """Plans of little memory, for a budget that no plan met so far."""
        return ()

    def before_refusal(self, pool: "CandidatePool") -> Iterable[Candidate]:  # noqa: ARG002
        """Candidates that should fit where no plan of little memory does, however many were compiled."""
        return ()

    def slowdown(self, pool: "CandidatePool") -> float:
        """Expected seconds over predicted ones: the ratio of the generator's last plan.

        The step as it is does not count: XLA fuses across stages in it, and plans have barriers between stages.
        """
        own = [compiled for compiled in pool.of(self) if not is_unplanned(compiled.plan)]
        return pool.slowdown(own[-1]) if own else pool.default_slowdown


@dataclass(eq=False, slots=True)
class CandidatePool:
    """Plans that were compiled for one budget, by the generators that proposed them.

    Attributes:
      planner: Compiles, and estimates the seconds of compiled steps.
      limit_bytes: The budget.
      compiled: In the order in which they were compiled.
    """

    planner: "Planner"
    limit_bytes: int
    limits: Limits
    compiled: list[CompiledPlan] = field(default_factory=list)
    _proposed_by: dict[ir.GraphPlan, Generator] = field(default_factory=dict)

    def compile(self, plan: ir.GraphPlan, generator: Generator) -> CompiledPlan:
        """Compiles a candidate of a generator."""
        self.compiled.append(self.planner.measure(plan))
        self._proposed_by[plan] = generator.source
        return self.compiled[-1]

    def holds(self, plan: ir.GraphPlan) -> bool:
        """True if a plan was compiled for this budget."""
        return plan in self._proposed_by

    @property
    def best(self) -> CompiledPlan | None:
        """The fastest plan within the budget; of plans that differ by rounding the one that was compiled first."""
        fitting = [c for c in self.compiled if c.fits(self.limit_bytes)]
        return min(fitting, key=lambda c: (_rounded(self.step_s(c)), _rounded(c.plan.predicted.step_s)), default=None)

    def is_well_used(self, generator: Generator) -> bool:
        """True if a plan of a generator leaves little of the budget, or is the step as it is, which fits."""
        fixed_bytes = generator.fixed_bytes(self)
        least_bytes = fixed_bytes + self.limits.well_used * (self.limit_bytes - fixed_bytes)
        fitting = [compiled for compiled in self.of(generator) if compiled.fits(self.limit_bytes)]
        return any(c.footprint.total_bytes >= least_bytes or is_unplanned(c.plan) for c in fitting)

    @property
    def unplanned_is_too_large(self) -> bool:
        """True if the step as it is was compiled and does not fit."""
        return any(is_unplanned(c.plan) and not c.fits(self.limit_bytes) for c in self.compiled)

    def step_s(self, compiled: CompiledPlan) -> float:
        """Estimated seconds of a compiled step."""
        return self.planner.step_s_with_stalls(compiled)

    def error(self, generator: Generator, *, inherits: bool = False) -> ModelError:
        """The error of a generator's predictions.

        Before a plan of the generator was compiled the error is 0 or, with `inherits`, the least of all compiled plans.
        """
        least_bytes = min((c.model_error_bytes for c in self.compiled), default=0) if inherits else 0
        return ModelError(self.of(generator), otherwise_bytes=max(0, least_bytes))

    def question(self, generator: Generator, error: ModelError) -> int:
        """The predicted total at which the compiled total of a generator's plan should be the budget."""
        return error.question(self.limit_bytes, self.limits, fixed_bytes=generator.fixed_bytes(self))

    def expected(self, plan: ir.GraphPlan, generator: Generator, error: ModelError) -> Candidate:
        """A plan with its corrected prediction."""
        predicted = plan.predicted
        total_bytes = predicted.total_bytes + error.at(predicted.total_bytes)
        return Candidate(plan, total_bytes, generator.slowdown(self) * predicted.step_s)

    @property
    def default_slowdown(self) -> float:
        """Expected seconds over predicted ones for plans of a generator of which nothing was compiled.

        The least ratio of all compiled plans, or 1 if even that plan is slower than the model can explain. The step as
        it is does not count, as above: in a chain of 16 layers it takes 640 us, with a barrier between layers 616.
        """
        planned = (compiled for compiled in self.compiled if not is_unplanned(compiled.plan))
        least = min(map(self.kernel_slowdown, planned), default=1.0)
        return least if least <= self.limits.too_slow else 1.0

    def is_as_good(self, plan: ir.GraphPlan) -> bool:
        """True if a compiled plan that fits has the predicted figures of this one, and is as fast as predicted.

        Such plans mostly decide the same. One that is slower says nothing: in `radiance-field-1` of the battery the
        solver's plan took 2.6% more than predicted, and `sqrt` of the same figures 0.4%.
        """
        fitting = (compiled for compiled in self.compiled if compiled.fits(self.limit_bytes))
        as_fast = [c.plan.predicted for c in fitting if self.limits.faster * self.slowdown(c) <= 1]
        predicted = plan.predicted
        return any(
            isclose(known.total_bytes, predicted.total_bytes, rel_tol=_SAME_FIGURES)
            and isclose(known.step_s, predicted.step_s, rel_tol=_SAME_FIGURES)
            for known in as_fast
        )

    @property
    def overprediction(self) -> float:
        """The share by which a plan that was not compiled may take less than predicted.

        As far below the least error of the compiled plans as this is below the largest. A few plans agree by chance: at
        least twice the share by which a plan has to be faster.
        """
        errors = [
            compiled.model_error_bytes / max(1, compiled.plan.predicted.total_bytes) for compiled in self.compiled
        ]
        least = 2 * min(errors) - max(errors) if errors else 0.0
        return max(2 * (1 - self.limits.faster), -least)

    @property
    def bytes_error(self) -> float:
        """The largest error of a predicted total so far, as a share of it."""
        return max((compiled.model_error for compiled in self.compiled), default=0.0)

    @property
    def seconds_spread(self) -> float:
        """The share by which the fastest compiled plan, compared with its prediction, is faster than most.

        One plan that is much slower than predicted is no sign that another is faster: in GPT-2 small XLA computes the
        plan of one rule in 1.23 times the seconds, and those of seven others in 1.05 to 1.09 times.
        """
        slowdowns = [self.kernel_slowdown(compiled) for compiled in self.compiled]
        return 1 - min(slowdowns) / median_low(slowdowns)

    def of(self, generator: Generator) -> list[CompiledPlan]:
        """Compiled plans that a generator proposed."""
        return [compiled for compiled in self.compiled if self._proposed_by[compiled.plan] is generator.source]

    def slowdown(self, compiled: CompiledPlan) -> float:
        """Estimated seconds of a compiled step over those predicted."""
        step_s = compiled.plan.predicted.step_s
        return self.step_s(compiled) / step_s if step_s and self.step_s(compiled) else 1.0

    def kernel_slowdown(self, compiled: CompiledPlan) -> float:
        """Estimated seconds of the kernels of a compiled step over those predicted.

        Waits for copies say nothing about plans with fewer copies. When waits were counted, the search ended with a
        decoder's plan that waits 5 ms, and did not compile a faster one that copies nothing.
        """
        kernels_s = compiled.plan.predicted.step_s - compiled.plan.predicted.stall_s
        return compiled.footprint.step_s / kernels_s if kernels_s and compiled.footprint.step_s else 1.0


def _rounded(seconds: float) -> float:
    """To picoseconds: sums of the same kernels in another order differ by less."""
    return round(seconds, 12)


def is_unplanned(plan: ir.GraphPlan) -> bool:
    """True if a plan leaves the step as it is."""
    return not (plan.decisions or any(plan.transformations) or plan.host_arguments)
