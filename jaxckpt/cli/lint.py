"""`jaxckpt lint`: what is known to go wrong with checkpoints and policies, looked for in a step."""

import dataclasses
from typing import Annotated

import typer

from jaxckpt.cli.console import EXIT_REFUSED, Json, PolicyName, Reference, Shell


def lint(
    reference: Reference,
    policy: PolicyName = None,
    target: Annotated[str | None, typer.Option(help="The machine that the step should run on.")] = None,
    json: Json = False,
) -> None:
    """Look for what is known to go wrong; fails where something is without effect or wrong."""
    from jaxckpt.cli.reference import load_step
    from jaxckpt.linter import lint as lint_step
    from jaxckpt.policy import load_policy
    from jaxckpt.report import findings_report

    shell = Shell(json=json)
    with shell.progress() as say:
        chosen = None if policy is None else load_policy(policy)  # mistakes are said before the user's code runs
        step = load_step(reference)
        say("tracing the step")
        findings = lint_step(step, policy=chosen, target=target)
    shell.show(findings_report(findings), dataclasses.asdict(findings) | {"ok": not findings.void}, unfold=True)
    if findings.void:
        raise typer.Exit(EXIT_REFUSED)
