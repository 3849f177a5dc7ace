"""`jaxckpt targets`: the machines that can be compiled for, and what to install for the rest."""

import dataclasses

from jaxckpt.cli.console import Json, Shell


def targets(json: Json = False) -> None:
    """List targets: what is usable here, and what to install for the rest."""
    from jaxckpt.machine import targets as known_targets
    from jaxckpt.report import targets_report

    statuses = known_targets()
    Shell(json=json).show(targets_report(statuses), {"targets": [dataclasses.asdict(status) for status in statuses]})
