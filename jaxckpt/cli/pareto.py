"""`jaxckpt pareto`: what each amount of memory costs in time, from the smallest plan to the fastest."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxckpt.cli.console import Json, Page, Reference, Shell, TargetName, compiled_target
from jaxckpt.cli.plan import plan_data

if TYPE_CHECKING:
    from jaxckpt.planner import Frontier


def pareto(
    reference: Reference,
    target: TargetName = "h200",
    points: Annotated[int, typer.Option(min=2, help="Compile so many plans.")] = 8,
    html: Page = None,
    json: Json = False,
) -> None:
    """Draw memory against time: plans from the smallest total to the fastest, compiled."""
    from jaxckpt.cli.reference import load_step
    from jaxckpt.planner import pareto as pareto_of
    from jaxckpt.report import frontier_report, require_report_folder, save_page

    if html is not None:
        require_report_folder(html)
    shell = Shell(json=json)
    machine = compiled_target(target)
    with shell.progress() as say:
        step = load_step(reference)
        frontier = pareto_of(step, target=machine, points=points, progress=say)
    report = frontier_report(frontier)
    if html is not None:
        save_page(report, html, title=f"jaxckpt pareto {reference}")
    shell.show(report, frontier_data(frontier))


def frontier_data(frontier: "Frontier") -> dict[str, Any]:
    """A frontier's figures as plain data."""
    return {
        "step": frontier.step,
        "target": frontier.target,
        "unplanned_bytes": frontier.unplanned.total_bytes,
        "compiles": frontier.compiles,
        "points": [
            {"total_bytes": point.total_bytes, "estimated_step_s": point.step_s, "plan": plan_data(point.plan)}
            for point in frontier.points
        ],
        "between": [{"total_bytes": each.total_bytes, "estimated_step_s": each.step_s} for each in frontier.between],
    }
