"""`jaxckpt plan`: fit a step into one or several budgets, proved by the compiler."""

from pathlib import Path
from typing import Annotated, Any

import typer

from jaxckpt._errors import InfeasibleBudgetError, PlanFileError
from jaxckpt._units import budget_bytes, format_bytes
from jaxckpt.cli.console import Json, Reference, Shell, TargetName, print_error
from jaxckpt.cli.reference import load_step
from jaxckpt.planner import Plan, Planner, PlanOptions, require_folder
from jaxckpt.report import Section, plan_report
from jaxckpt.solve import STRATEGIES, named_strategy

_STRATEGIES = f"{', '.join(STRATEGIES)}; some take an option: every:4, mincut:ilp. See docs/strategies.md."
_ALLOW = 'What may happen to residuals besides being saved, separated by commas: "recompute,offload,partition".'


def plan(
    reference: Reference,
    budget: Annotated[list[str], typer.Option(help='"6GiB", "6GB", bytes or "50%"; may be repeated.')],
    target: TargetName = "h200",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where to write the plan (TOML).")] = None,
    strategy: Annotated[str, typer.Option(help=_STRATEGIES)] = "optimal",
    allow: Annotated[str, typer.Option(help=_ALLOW)] = "recompute",
    max_compiles: Annotated[int, typer.Option(min=1, help="At most so many compiles a budget, unless none fits.")] = 6,
    json: Json = False,
) -> None:
    """Fit a training step into a budget of memory."""
    named_strategy(strategy)
    words = tuple(word.strip() for word in allow.split(",") if word.strip())
    options = PlanOptions(allow=words, max_compiles=max_compiles)
    _refuse_early(reference, budget, output)
    shell = Shell(json=json)
    plans: list[Plan] = []
    refused: dict[str, InfeasibleBudgetError] = {}
    with shell.progress() as say:
        planner = Planner(load_step(reference), target=target, options=options, progress=say)
        for text in budget:
            try:
                plans.append(planner.plan(budget=budget_as_typed(text), strategy=strategy))
            except InfeasibleBudgetError as error:
                refused[text] = error
    if output is not None:
        for made in plans:
            made.save(output)
    data = {"plans": list(map(plan_data, plans)), "refused": list(map(refused_data, refused.items()))}
    shell.show(Section(title="", parts=tuple(map(plan_report, plans))), data)
    *others, last = refused.values() or (None,)
    for error in others:
        print_error(error)
    if last is not None:
        raise last


def _refuse_early(reference: str, budgets: list[str], output: Path | None) -> None:
    """Refuses mistyped options before anything is compiled."""
    for text in budgets:
        budget_bytes(budget_as_typed(text), baseline_bytes=1)
    if output is None:
        return
    if len(budgets) > 1:
        raise PlanFileError(
            "jaxckpt plan: several budgets make several plans, and one file was given.",
            got=f"--budget {' --budget '.join(budgets)} --output {output}",
            needed="one budget, or no --output",
            advice=f"jaxckpt plan {reference} --budget {budgets[0]} --output {output}",
        )
    require_folder(output)


def refused_data(refused: tuple[str, InfeasibleBudgetError]) -> dict[str, Any]:
    """A budget that cannot be met, as plain data."""
    budget, error = refused
    return {"budget": budget, "minimum_bytes": error.minimum_bytes, "message": str(error)}


def plan_data(plan: Plan) -> dict[str, Any]:
    """A plan's figures as plain data."""
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
        "recompute_s": plan.predicted.recompute_s,
        "step_s": plan.predicted.step_s,
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
