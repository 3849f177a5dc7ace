"""Results of a search over batches, as plain data; the search is in `batch_search`."""

from dataclasses import dataclass
from typing import ClassVar

from jaxckpt._shown import Shown
from jaxckpt.planner.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedBatch:
    """One batch size.

    Attributes:
      batch: Items a step.
      fits: Whether a plan brings it under the budget.
      compiled: Whether the compiler said so; else the model did, corrected by what the compiler said of others.
      smallest_bytes: The smallest total reached or, where nothing was compiled, expected, bytes per device.
      step_s: Estimated seconds of a step with the fastest plan that fits: the compiled program's where there is a plan,
        else the model's; 0 where nothing fits.
      plan: The fastest plan that fits, compiled; None where it was not looked for.
    """

    batch: int
    fits: bool
    compiled: bool
    smallest_bytes: int
    step_s: float = 0.0
    plan: Plan | None = None

    @property
    def items_per_s(self) -> float:
        """Estimated throughput; 0 where nothing fits."""
        return self.batch / self.step_s if self.step_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSearch(Shown):
    """The batches that were tried for a step under a budget.

    Attributes:
      step: The step's name.
      target: The machine's.
      budget_bytes: Bytes per device.
      multiples_of: What every batch is a multiple of.
      tried: By batch; the largest and the fastest are among them.
      largest: The largest batch that fits, with its plan.
      fastest: That of the highest estimated throughput among those that were compiled, with its plan.
      compiles: How many programs were compiled.
    """

    _report: ClassVar[str] = "jaxckpt.report.batches:batches_report"

    step: str
    target: str
    budget_bytes: int
    multiples_of: int
    tried: tuple[TriedBatch, ...]
    largest: TriedBatch
    fastest: TriedBatch
    compiles: int

    @property
    def batch(self) -> int:
        """The largest batch that fits."""
        return self.largest.batch

    @property
    def plan(self) -> Plan:
        """The plan that makes it fit."""
        assert self.largest.plan is not None, "the largest batch was planned"
        return self.largest.plan
