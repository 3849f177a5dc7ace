"""Verbs that search: `jaxckpt pareto`, memory against time; and `max-batch`, the largest batch and the fastest one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxckpt._units import budget_bytes
from jaxckpt.cli.console import Json, Page, Reference, Shell, TargetName, compiled_target
from jaxckpt.cli.plan import budget_as_typed, plan_data

if TYPE_CHECKING:
    from jaxckpt.planner import BatchSearch, Frontier, TriedBatch


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
    from jaxckpt.report import frontier_report

    shell = Shell(html, json=json)
    machine = compiled_target(target)
    with shell.progress() as say:
        frontier = pareto_of(load_step(reference), target=machine, points=points, progress=say)
    shell.show(frontier_report(frontier), frontier_data(frontier), page=html, title=f"jaxckpt pareto {reference}")


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


def max_batch(
    reference: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="Function of a batch size that returns (step, args).")
    ],
    target: TargetName = "h200",
    budget: Annotated[
        str | None, typer.Option(help='"6GiB", "6GB", bytes or "90%" of the device; its memory if not given.')
    ] = None,
    multiples_of: Annotated[int, typer.Option(min=1, help="Try only multiples of this.")] = 1,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where to write the plan of the largest batch (TOML).")
    ] = None,
    json: Json = False,
) -> None:
    """Find the largest batch that fits with a plan, and the one of highest estimated throughput."""
    typed = None if budget is None else budget_as_typed(budget)
    if typed is not None:
        budget_bytes(typed, baseline_bytes=1)  # mistakes are said before anything is compiled
    from jaxckpt.cli.reference import load_maker
    from jaxckpt.planner import max_batch as search_batches, require_folder
    from jaxckpt.report import batches_report

    if output is not None:
        require_folder(output)
    shell = Shell(json=json)
    machine = compiled_target(target)
    with shell.progress() as say:
        make_step = load_maker(reference)
        search = search_batches(make_step, target=machine, budget=typed, multiples_of=multiples_of, progress=say)
    if output is not None:
        search.plan.save(output)
    shell.show(batches_report(search), batches_data(search))


def batches_data(search: "BatchSearch") -> dict[str, Any]:
    """A search's figures as plain data."""
    return {
        "step": search.step,
        "target": search.target,
        "budget_bytes": search.budget_bytes,
        "multiples_of": search.multiples_of,
        "compiles": search.compiles,
        "largest": tried_data(search.largest),
        "fastest": tried_data(search.fastest),
        "tried": [tried_data(each) for each in search.tried],
    }


def tried_data(tried: "TriedBatch") -> dict[str, Any]:
    """One batch as plain data."""
    return {
        "batch": tried.batch,
        "fits": tried.fits,
        "compiled": tried.compiled,
        "smallest_bytes": tried.smallest_bytes,
        "estimated_step_s": tried.step_s,
        "items_per_s": tried.items_per_s,
        "plan": None if tried.plan is None else plan_data(tried.plan),
    }
