"""`jaxckpt lint`: what is known to go wrong with checkpoints and policies, looked for in a step."""

import dataclasses
from typing import Annotated, Any

import typer

from jaxckpt.cli.console import EXIT_REFUSED, Shell
from jaxckpt.cli.reference import load_step
from jaxckpt.linter import Findings
from jaxckpt.linter import lint as lint_step
from jaxckpt.policy import load_policy
from jaxckpt.report import findings_report, print_report


def lint(
    reference: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="What returns (step, args).")],
    policy: Annotated[str | None, typer.Option(help="A ready policy's name, or a policy file.")] = None,
    target: Annotated[str | None, typer.Option(help="The machine that the step should run on.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Look for what is known to go wrong; fails where something is without effect or wrong."""
    shell = Shell(json=json)
    with shell.progress() as say:
        chosen = None if policy is None else load_policy(policy)  # mistakes are said before the user's code runs
        step = load_step(reference)
        say("tracing the step")
        findings = lint_step(step, policy=chosen, target=target)
    if json:
        shell.print_json(findings_data(findings))
    else:
        print_report(findings_report(findings), shell.out, unfold=True)
    if findings.void:
        raise typer.Exit(EXIT_REFUSED)


def findings_data(findings: Findings) -> dict[str, Any]:
    """Findings as plain data."""
    return dataclasses.asdict(findings) | {"ok": not findings.void}
