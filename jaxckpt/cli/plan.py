"""`jaxckpt plan`: fit a step into one or several budgets, proved by the compiler, or check a plan of before."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxckpt._errors import ArgumentError, InfeasibleBudgetError
from jaxckpt._progress import Progress, silent
from jaxckpt._units import budget_bytes, format_bytes
from jaxckpt.cli.console import EXIT_INFEASIBLE, Json, Reference, Shell, compiled_target, print_error

if TYPE_CHECKING:
    from jaxckpt.planner import Plan, Planner

_STRATEGIES = (
    "optimal, none, full, every, sqrt, revolve, rotor, dots, dots_no_batch, elementwise_recomputed, names, layers,"
    " mincut, megatron, mindspore, checkmate, dtr, dte, coop; some take an option: every:4, mincut:ilp."
    " See docs/strategies.md."
)
"""Written out: the solvers take seconds to import."""
_ALLOW = (
    'What may happen to residuals besides being saved, separated by commas: "recompute,offload,partition"; with "chunk"'
    ' a loss head may run in pieces of rows, with "state" optimiser state may be in host memory.'
)
_CHECK = "A plan file: say whether it is still valid here, and what changed (exit code 3 if it is not)."
_TARGET = "The machine to compile for; see jaxckpt targets (default: h200; with --check that of the plan)."


def plan(
    reference: Reference,
    budget: Annotated[list[str] | None, typer.Option(help='"6GiB", "6GB", bytes or "50%"; may be repeated.')] = None,
    target: Annotated[str | None, typer.Option(help=_TARGET, show_default=False)] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where to write the plan (TOML).")] = None,
    strategy: Annotated[str, typer.Option(help=_STRATEGIES)] = "optimal",
    allow: Annotated[str, typer.Option(help=_ALLOW)] = "recompute",
    max_compiles: Annotated[int, typer.Option(min=1, help="Most compiles for a budget; more if no plan fits.")] = 8,
    check: Annotated[Path | None, typer.Option(metavar="FILE", help=_CHECK)] = None,
    json: Json = False,
) -> None:
    """Fit a training step into a budget of memory, or check a plan file."""
    budgets = list(budget or ())
    _refuse_early(reference, budgets, output, check)
    if check is not None:
        _check_file(check, reference, target, output, Shell(json=json))
        return
    from jaxckpt.cli.reference import load_step
    from jaxckpt.planner import Planner, PlanOptions
    from jaxckpt.report import Section, plan_report
    from jaxckpt.solve import named_strategy

    named_strategy(strategy)
    words = tuple(word.strip() for word in allow.split(",") if word.strip())
    options = PlanOptions(allow=words, max_compiles=max_compiles)
    machine = compiled_target(target or "h200")
    shell = Shell(json=json)
    with shell.progress() as say:
        planner = Planner(load_step(reference), target=machine, options=options, progress=say)
        plans, refused = plans_for(planner, budgets, strategy=strategy)
    if output is not None:
        for made in plans.values():
            made.save(output)
    data = {"plans": list(map(plan_data, plans.values())), "refused": list(map(refused_data, refused.items()))}
    shell.show(Section(title="", parts=tuple(map(plan_report, plans.values()))), data)
    if refused:
        *others, last = refused.values()
        for other in others:
            print_error(other)
        raise last


def plans_for(
    planner: "Planner", budgets: Sequence[str], *, strategy: str = "optimal", progress: Progress = silent
) -> tuple[dict[str, "Plan"], dict[str, InfeasibleBudgetError]]:
    """Plans for the budgets that are met, and the errors of the others, by budget as typed."""
    plans: dict[str, Plan] = {}
    refused: dict[str, InfeasibleBudgetError] = {}
    for text in budgets:
        progress(f"budget {text}")
        try:
            plans[text] = planner.plan(budget=budget_as_typed(text), strategy=strategy)
        except InfeasibleBudgetError as error:
            refused[text] = error
    return plans, refused


def _check_file(path: Path, reference: str, target: str | None, output: Path | None, shell: Shell) -> None:
    """Holds a plan file against the step and the compiler that are here."""
    from jaxckpt.cli.reference import load_step
    from jaxckpt.planner import check_plan, load_plan
    from jaxckpt.report import plan_check_report

    loaded = load_plan(path)
    machine = compiled_target(target or loaded.target)
    with shell.progress() as say:
        checked = check_plan(loaded, load_step(reference), target=machine, progress=say)
    if output is not None and checked.ok:
        checked.plan.save(output)
    shell.show(plan_check_report(checked), checked.to_dict())
    if not checked.ok:
        raise typer.Exit(EXIT_INFEASIBLE)


def _refuse_early(reference: str, budgets: list[str], output: Path | None, check: Path | None) -> None:
    """Refuses mistyped options before anything is loaded or compiled."""
    if (check is None) == (not budgets):
        raise ArgumentError(
            "jaxckpt plan: a step is fitted into a budget, or a plan of it is checked.",
            got="neither a budget nor a plan" if check is None else f"--check {check} --budget {' '.join(budgets)}",
            needed="either --budget or --check",
            advice=f'jaxckpt plan {reference} --budget "80%"',
        )
    for text in budgets:
        budget_bytes(budget_as_typed(text), baseline_bytes=1)
    if output is None:
        return
    if len(budgets) > 1:
        raise ArgumentError(
            "jaxckpt plan: several budgets make several plans, and one file was given.",
            got=f"--budget {' --budget '.join(budgets)} --output {output}",
            needed="one budget, or no --output",
            advice=f"jaxckpt plan {reference} --budget {budgets[0]} --output {output}",
        )
    from jaxckpt.planner import require_folder

    require_folder(output)


def refused_data(refused: tuple[str, InfeasibleBudgetError]) -> dict[str, Any]:
    """A budget that cannot be met, as plain data."""
    budget, error = refused
    return {"budget": budget, "minimum_bytes": error.minimum_bytes, "message": str(error)}


def plan_data(plan: "Plan") -> dict[str, Any]:
    """A plan's figures as plain data; docs/plan.schema.json has each of them."""
    assert plan.footprint is not None
    assert plan.budget_bytes is not None
    return {
        "target": plan.target,
        "strategy": plan.strategy,
        "budget_bytes": plan.budget_bytes,
        "budget": format_bytes(plan.budget_bytes),
        "total_bytes": plan.footprint.total_bytes,
        "predicted_bytes": plan.predicted.total_bytes,
        "saved_bytes": plan.predicted.saved_bytes,
        "estimated_step_s": plan.estimated_step_s,
        "predicted_step_s": plan.predicted.step_s,
        "predicted_recompute_s": plan.predicted.recompute_s,
        "gap": plan.predicted.gap,
        "footprint": plan.footprint.to_dict(),
        "compiles": len(plan.attempts),
        "notes": list(plan.notes),
    }


def budget_as_typed(text: str) -> str | float:
    """A budget as typed; a bare fraction such as 0.5 is one here too."""
    try:
        number = float(text)
    except ValueError:
        return text
    return number if 0 < number < 1 else text
