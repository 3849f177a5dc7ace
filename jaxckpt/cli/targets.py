"""`jaxckpt targets`: the machines that can be compiled for, and what to install for the rest."""

import dataclasses
from typing import Annotated

import typer

from jaxckpt.cli.console import Shell
from jaxckpt.machine import targets as known_targets
from jaxckpt.report import print_report, targets_report


def targets(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List targets: what is usable here, and what to install for the rest."""
    shell = Shell(json=json)
    statuses = known_targets()
    if json:
        shell.print_json({"targets": [dataclasses.asdict(status) for status in statuses]})
    else:
        print_report(targets_report(statuses), shell.out)
