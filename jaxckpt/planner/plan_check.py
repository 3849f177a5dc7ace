"""A plan held against the step, the packages and the compiler that are here now, for continuous integration.

The step is traced and compared with the one that the plan was made for; then the planned step is compiled, once, and
its total is compared with the budget. Read after `planner`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax

from jaxckpt._errors import PlanMismatchError
from jaxckpt._progress import Progress
from jaxckpt._shown import Shown
from jaxckpt._step import Step
from jaxckpt._units import format_bytes
from jaxckpt.compiler import Footprint
from jaxckpt.machine import Target
from jaxckpt.planner.planner import Planner
from jaxckpt.planner.user_plan import Plan
from jaxckpt.rewrite.check_plan import check_planned


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PlanCheck(Shown):
    """A plan that was made before, and what is true of it here.

    Attributes:
      plan: The plan, with the footprint that was compiled here where it is for this step.
      problems: Why it is not valid: another step, other arguments, or more memory than its budget.
      changes: What is different, and no reason against the plan: versions, totals, decisions changed by hand.
      total_bytes: The compiled total here, bytes per device; None where the plan is for another step.
    """

    _report: ClassVar[str] = "jaxckpt.report.plan:plan_check_report"

    plan: Plan
    problems: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    total_bytes: int | None = None

    @property
    def ok(self) -> bool:
        """True if the plan is for this step, and its compiled total is within its budget."""
        return not self.problems

    def summary(self) -> str:
        """The figures that matter most, in one line."""
        return "valid" if self.ok else "; ".join(self.problems)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "ok": self.ok,
            "target": self.plan.target,
            "budget_bytes": self.plan.budget_bytes,
            "total_bytes": self.total_bytes,
            "problems": list(self.problems),
            "changes": list(self.changes),
        }


def check_plan(
    plan: Plan,
    step: Callable[..., Any] | Step,
    *args: Any,
    target: Target | str | None = None,
    progress: Progress | None = None,
) -> PlanCheck:
    """Says whether a plan is still valid for a step here, and what changed since it was made; compiles once.

    Args:
      plan: As it was loaded.
      step: The step that it should be for, as `jaxckpt.plan` takes it.
      *args: The step's arguments.
      target: Another machine than the plan's.
      progress: Called with a sentence before each longer piece of work.

    Returns:
      What is true of the plan here; `ok` is False for another step and for a total above the budget.

    Raises:
      MissingPackageError: The compiler for the target is not installed.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import jaxckpt
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> args = jnp.eye(4), jnp.ones((2, 4))
      >>> plan = jaxckpt.plan(step, *args, budget="1GiB", target="cpu")
      >>> check_plan(plan, step, *args).ok
      True
      >>> check_plan(plan, step, jnp.eye(8), jnp.ones((2, 8))).ok
      False
    """
    machine = Target(plan.target if target is None else target)
    machine.require_compiler()
    planner = Planner(Step.of(step, args), target=machine, progress=progress)
    try:
        check_planned(planner.traced, plan, plan.arguments, None)
    except PlanMismatchError as error:
        problem = f"{error.headline} Here: {error.got}. Planned: {error.needed}."
        return PlanCheck(plan=plan, problems=(problem,), changes=tuple(_versions(plan, machine)))
    candidate = planner.measure(plan)
    seconds = planner.step_s_with_stalls(candidate)
    return PlanCheck(
        plan=replace(plan, target=machine.name, footprint=candidate.footprint, estimated_step_s=seconds),
        problems=tuple(_above_budget(plan, candidate.footprint)),
        changes=(*_versions(plan, machine), *_measured_changes(plan, candidate.footprint)),
        total_bytes=candidate.footprint.total_bytes,
    )


def _above_budget(plan: Plan, here: Footprint) -> Iterator[str]:
    if plan.budget_bytes is not None and here.total_bytes > plan.budget_bytes:
        yield (
            f"The compiled total is {format_bytes(here.total_bytes)}, above the budget of"
            f" {format_bytes(plan.budget_bytes)}: plan again."
        )


def _versions(plan: Plan, target: Target) -> Iterator[str]:
    """Versions and the machine, where they are others than when the plan was compiled."""
    if plan.target != target.name:
        yield f"The plan is for {plan.target}; it was compiled for {target.name} here."
    if plan.footprint is None:
        yield from (note for note in plan.notes if note.startswith("Changed by hand"))
        return
    made = plan.footprint
    pairs = (("jax", made.jax_version, jax.__version__), ("compiler", made.plugin_version, target.compiler_version))
    yield from (f"{name} was {before}, is {now}." for name, before, now in pairs if before and before != now)


def _measured_changes(plan: Plan, here: Footprint) -> Iterator[str]:
    if plan.footprint is not None and plan.footprint.total_bytes != here.total_bytes:
        yield f"The compiled total was {format_bytes(plan.footprint.total_bytes)}, is {format_bytes(here.total_bytes)}."
