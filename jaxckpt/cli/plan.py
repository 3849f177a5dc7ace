"""`jaxckpt plan`: fit a step into one or several budgets, proved by the compiler."""

from pathlib import Path
from typing import Annotated, Any

import typer

from jaxckpt._errors import PlanFileError
from jaxckpt._units import format_bytes
from jaxckpt.cli.console import Shell
from jaxckpt.cli.reference import load_step
from jaxckpt.fit import Plan, Planner
from jaxckpt.report import plan_report, print_report


def plan(
    reference: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="What returns (step, args).")],
    budget: Annotated[list[str], typer.Option(help='"6GiB", "6GB", bytes or "50%"; may be repeated.')],
    target: Annotated[str, typer.Option(help="The machine to compile for; see jaxckpt targets.")] = "h200",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where to write the plan (TOML).")] = None,
    strategy: Annotated[str, typer.Option(help="optimal, full or none.")] = "optimal",
    max_compiles: Annotated[int, typer.Option(help="At most so many compiles a budget.")] = 4,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Fit a training step into a budget of memory."""
    if output is not None and len(budget) > 1:
        raise PlanFileError(
            "jaxckpt plan: several budgets make several plans, and one file was given.",
            got=f"--budget {' --budget '.join(budget)} --output {output}",
            needed="one budget, or no --output",
            advice=f"jaxckpt plan {reference} --budget {budget[0]} --output {output}",
        )
    shell = Shell(json=json)
    with shell.progress() as say:
        referred = load_step(reference)
        planner = Planner(
            referred.step,
            *referred.args,
            target=target,
            max_compiles=max_compiles,
            progress=say,
            **referred.options,
        )
        plans = [planner.plan(budget=_budget(text), strategy=strategy) for text in budget]
    for made in plans:
        if output is not None:
            made.save(output)
        if not json:
            print_report(plan_report(made), shell.out)
    if json:
        shell.print_json({"plans": [plan_data(made) for made in plans]})


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
        "footprint": plan.footprint.to_dict(),
        "compiles": len(plan.attempts),
        "notes": list(plan.notes),
    }


def _budget(text: str) -> str | float:
    """A budget as typed; a bare fraction such as 0.5 is one here too."""
    try:
        number = float(text)
    except ValueError:
        return text
    return number if 0 < number < 1 else text
