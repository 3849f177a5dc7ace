"""`jaxckpt verdicts`: what each rule of a policy, or each name of a step, is worth, by compiling."""

import dataclasses
from typing import Annotated

import typer

from jaxckpt.cli.console import Shell
from jaxckpt.cli.reference import load_step
from jaxckpt.comparison import verdicts as judge
from jaxckpt.policy import load_policy
from jaxckpt.report import print_report, verdicts_report


def verdicts(
    reference: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="What returns (step, args).")],
    policy: Annotated[str | None, typer.Option(help="A ready policy's name, or a policy file.")] = None,
    target: Annotated[str, typer.Option(help="The machine to compile for; see jaxckpt targets.")] = "h200",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say of each rule, or of each name, whether it pays."""
    shell = Shell(json=json)
    with shell.progress() as say:
        chosen = None if policy is None else load_policy(policy)  # mistakes are said before the user's code runs
        step = load_step(reference)
        said = judge(step, policy=chosen, target=target, progress=say)
    if json:
        shell.print_json(dataclasses.asdict(said))
    else:
        print_report(verdicts_report(said), shell.out, unfold=True)
