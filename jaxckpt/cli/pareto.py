"""`jaxckpt pareto`: what each amount of memory costs in time, from the smallest plan to the fastest."""

from pathlib import Path
from typing import Annotated, Any

import typer

from jaxckpt.cli.console import Shell
from jaxckpt.cli.plan import plan_data
from jaxckpt.cli.reference import load_step
from jaxckpt.planner import Frontier
from jaxckpt.planner import pareto as pareto_of
from jaxckpt.report import frontier_report, print_report, require_report_folder, save_page


def pareto(
    reference: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="What returns (step, args).")],
    target: Annotated[str, typer.Option(help="The machine to compile for; see jaxckpt targets.")] = "h200",
    points: Annotated[int, typer.Option(min=2, help="Compile so many plans.")] = 8,
    html: Annotated[Path | None, typer.Option(help="Where to write it as a page.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Draw memory against time: plans from the smallest total to the fastest, compiled."""
    if html is not None:
        require_report_folder(html)
    shell = Shell(json=json)
    with shell.progress() as say:
        step = load_step(reference)
        frontier = pareto_of(step, target=target, points=points, progress=say)
    report = frontier_report(frontier)
    if html is not None:
        save_page(report, html, title=f"jaxckpt pareto {reference}")
    if json:
        shell.print_json(frontier_data(frontier))
    else:
        print_report(report, shell.out)


def frontier_data(frontier: Frontier) -> dict[str, Any]:
    """A frontier's figures as plain data."""
    return {
        "step": frontier.step,
        "target": frontier.target,
        "unplanned_bytes": frontier.unplanned.total_bytes,
        "compiles": frontier.compiles,
        "points": [
            {"total_bytes": point.total_bytes, "step_s": point.step_s, "plan": plan_data(point.plan)}
            for point in frontier.points
        ],
        "between": [{"total_bytes": each.total_bytes, "step_s": each.step_s} for each in frontier.between],
    }
