"""A plan held against the step, the packages and the compiler that are here now: `check_plan`, `load_or_plan`.

The step is traced and compared with the one that the plan was made for; then the planned step is compiled, once, and
its total is compared with the budget. Read after `planner`.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Unpack

import jax

from jaxckpt._errors import PlanMismatchError
from jaxckpt._progress import Progress
from jaxckpt._shown import Shown
from jaxckpt._step import Step
from jaxckpt._units import budget_bytes, budget_fraction, format_bytes
from jaxckpt.calling import Calling
from jaxckpt.compiler import Footprint
from jaxckpt.machine import Target
from jaxckpt.planner.broadcast import plan_once
from jaxckpt.planner.options import PlanKeywords, PlanOptions, options_with
from jaxckpt.planner.plan_file import load_plan, require_folder
from jaxckpt.planner.planner import Planner
from jaxckpt.planner.user_plan import BY_HAND, Plan
from jaxckpt.rewrite.check_plan import check_planned
from jaxckpt.rewrite.moves import copy_options

_DEFAULT = PlanOptions()

_SAME_BUDGET = 0.01
"""A budget that is a share of the step's total is the same if it differs by at most this share: the total differs
between versions of the compiler. GPT-2 small's differs by 0.007% between jax 0.10.2 and 0.12.0
(`python -m benchmarks.demo`)."""


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
    static_argnums = () if isinstance(step, Step) or Calling(step).is_jitted else plan.static_argnums
    given = Step.of(step, args, static_argnums=static_argnums)
    return _checked(plan, Planner(given, target=machine, progress=progress), plan.budget_bytes)


def load_or_plan(
    path: str | Path,
    step: Callable[..., Any] | Step,
    *args: Any,
    budget: str | int | float,
    target: Target | str,
    strategy: str = "optimal",
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    options: PlanOptions = _DEFAULT,
    progress: Progress | None = None,
    **keywords: Unpack[PlanKeywords],
) -> Plan:
    """Reads a plan from a file, such as one committed with the code; if it is not valid, plans and replaces the file.

    A plan is valid for the same step, target and budget. If versions differ, or decisions were changed by hand, the
    plan is compiled once and its total must be within the budget. If several processes run, process 0 reads or plans,
    and the others receive its plan; every process has to call this function.

    Args:
      path: Of the plan file. A file that is no plan is not changed.
      step: As for `jaxckpt.plan`, like all other arguments.
      *args: The step's arguments.
      budget: Bytes per device; a share requires a compile of the step as written at every call.
      target: The machine.
      strategy: Name of the solver.
      donate_argnums: Arguments whose memory the results may take.
      static_argnums: Arguments that are not traced.
      options: All options as one object.
      progress: Called with a sentence before each longer piece of work.
      **keywords: Fields of `PlanOptions`.

    Returns:
      The plan; a warning says why an existing one was replaced.

    Raises:
      PlanFileError: The file is damaged or no plan, or cannot be written.
      InfeasibleBudgetError, BudgetError, ...: As `jaxckpt.plan`.

    Example:
      >>> import tempfile
      >>> import jax, jax.numpy as jnp
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> path = Path(tempfile.mkdtemp()) / "plan.toml"
      >>> made = load_or_plan(path, step, jnp.eye(4), jnp.ones((2, 4)), budget="1GiB", target="cpu")
      >>> made == load_or_plan(path, step, jnp.eye(4), jnp.ones((2, 4)), budget="1GiB", target="cpu")
      True
    """
    path = Path(path)
    require_folder(path)
    machine = Target(target)
    machine.require_compiler()
    given = Step.of(step, args, donate_argnums=donate_argnums, static_argnums=static_argnums)
    chosen = options_with(options, keywords, called=load_or_plan)

    def load_or_make() -> Plan:
        planner = Planner(given, target=machine, options=chosen, progress=progress)
        if path.exists():
            kept, problem = _kept(load_plan(path), planner, budget)
            if not problem:
                return kept
            warnings.warn(f"load_or_plan({str(path)!r}) makes a new plan: {problem}", RuntimeWarning, stacklevel=3)
        plan = planner.plan(budget=budget, strategy=strategy)
        plan.save(path)
        return plan

    return plan_once(load_or_make)


def _kept(plan: Plan, planner: Planner, budget: str | int | float) -> tuple[Plan, str]:
    """A plan that was read, compiled again where something has changed; and why it is not valid, or ""."""
    is_share = budget_fraction(budget) is not None
    limit_bytes = budget_bytes(budget, baseline_bytes=planner.unplanned.total_bytes if is_share else None)
    if plan.target != planner.target.name:
        return plan, f"It is for {plan.target}, not {planner.target.name}."
    if plan.budget_bytes is None or abs(plan.budget_bytes - limit_bytes) > is_share * _SAME_BUDGET * limit_bytes:
        made_for = "none" if plan.budget_bytes is None else format_bytes(plan.budget_bytes)
        return plan, f"Its budget is {made_for}, not {format_bytes(limit_bytes)}."
    problem = _mismatch(plan, planner)
    is_known = plan.footprint is not None and not list(_versions(plan, planner.target))
    if problem or (is_known and not _is_compiled_otherwise(plan, planner)):
        return plan, problem or (_excess(plan.footprint, limit_bytes) if plan.footprint else "")
    check = _checked(plan, planner, limit_bytes)
    return check.plan, " ".join(check.problems)


def _is_compiled_otherwise(plan: Plan, planner: Planner) -> bool:
    """True if a plan's footprint is of other donated arguments, or of other XLA options, than the planner's."""

    def texts(options: Iterable[tuple[str, Any]]) -> dict[str, str]:
        return {name: str(value) for name, value in options}

    options = (*copy_options(plan, planner.target.platform), *planner.compiler_options)
    has_other_options = plan.footprint is not None and texts(plan.footprint.compiler_options) != texts(options)
    if plan.prediction is None or plan.host_arguments:  # no known bytes of arguments and results on the device alone
        return has_other_options
    return has_other_options or plan.prediction.total_bytes - plan.prediction.temp_bytes != planner.fixed_bytes


def _excess(footprint: Footprint, limit_bytes: int | None) -> str:
    """Why a compiled plan is not within a budget, or ""."""
    if limit_bytes is None or footprint.total_bytes <= limit_bytes:
        return ""
    here, budget = format_bytes(footprint.total_bytes), format_bytes(limit_bytes)
    return f"The compiled total is {here}, above the budget of {budget}: plan again."


def _checked(plan: Plan, planner: Planner, limit_bytes: int | None) -> PlanCheck:
    machine = planner.target
    if problem := _mismatch(plan, planner):
        return PlanCheck(plan=plan, problems=(problem,), changes=tuple(_versions(plan, machine)))
    candidate = planner.measure(plan)
    total_bytes, changes = candidate.footprint.total_bytes, list(_versions(plan, machine))
    if plan.footprint is not None and plan.footprint.total_bytes != total_bytes:
        was, here = format_bytes(plan.footprint.total_bytes), format_bytes(total_bytes)
        changes.append(f"The compiled total was {was}, is {here}.")
    seconds = planner.step_s_with_stalls(candidate)
    return PlanCheck(
        plan=replace(plan, target=machine.name, footprint=candidate.footprint, estimated_step_s=seconds),
        problems=tuple(filter(None, [_excess(candidate.footprint, limit_bytes)])),
        changes=tuple(changes),
        total_bytes=total_bytes,
    )


def _mismatch(plan: Plan, planner: Planner) -> str:
    """Why a plan is not for the planner's step, or ""."""
    try:
        check_planned(planner.traced, plan, plan.arguments)
    except PlanMismatchError as error:
        return f"{error.headline} Here: {error.got}. Planned: {error.needed}."
    return ""


def _versions(plan: Plan, target: Target) -> Iterator[str]:
    """Versions and the machine, where they are others than when the plan was compiled."""
    if plan.target != target.name:
        yield f"The plan is for {plan.target}; it was compiled for {target.name} here."
    if plan.footprint is None:
        yield from (note for note in plan.notes if note.startswith(BY_HAND))
        return
    made = plan.footprint
    pairs = (("jax", made.jax_version, jax.__version__), ("compiler", made.plugin_version, target.compiler_version))
    yield from (f"{name} was {before}, is {now}." for name, before, now in pairs if before and before != now)
