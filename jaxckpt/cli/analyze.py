"""`jaxckpt analyze`: where a step's residuals are, without compiling anything."""

from typing import Annotated

import typer

from jaxckpt.cli.console import Json, Reference, Shell


def analyze(
    reference: Reference,
    target: Annotated[str, typer.Option(help="The machine whose rates the estimates use.")] = "h200",
    depth: Annotated[int | None, typer.Option(min=1, help="Add up scopes below this depth.")] = None,
    json: Json = False,
) -> None:
    """Show what a training step keeps from forward to backward, by scope."""
    from jaxckpt.cli.reference import load_step
    from jaxckpt.planner import analyze as analyze_step
    from jaxckpt.report import analysis_report

    shell = Shell(json=json)
    with shell.progress() as say:
        step = load_step(reference)
        say("tracing the step")
        analysis = analyze_step(step, target=target)
    shell.show(analysis_report(analysis, depth=depth), analysis, unfold=True)
