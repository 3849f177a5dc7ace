"""The known targets as a report: what is usable here, and what to install for the rest."""

from collections.abc import Iterable

from jaxckpt._units import format_bytes
from jaxckpt.machine import TargetStatus
from jaxckpt.report.tree import Table, columns


def targets_report(statuses: Iterable[TargetStatus]) -> Table:
    """One row a target."""
    return Table(
        title="Targets",
        columns=columns("name", "machine", ">memory", "usable here", "to use it"),
        rows=tuple(
            (
                status.name,
                status.description,
                format_bytes(status.memory_bytes) if status.memory_bytes else "",
                "yes" if status.usable else "no",
                "" if status.usable else (status.install or status.reason),
            )
            for status in statuses
        ),
    )
