"""Machines as reports: the known targets with what to install for them, and the rates measured on a device."""

from collections.abc import Iterable

from jaxckpt._units import format_bytes, format_seconds
from jaxckpt.machine import Calibration, Measured, TargetStatus
from jaxckpt.report.tree import Section, Table, Text, columns

_WARNING = "A smoke test: tiny sizes, only to see that everything runs. These figures mean nothing."


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


def calibration_report(calibration: Calibration) -> Section:
    """A calibration's figures, one a row, below what they were measured on."""
    rows = tuple(
        (each.what, each.detail, figure(each), f"{each.spread:.0%}", str(each.count)) for each in calibration.measured
    )
    versions = ", ".join(f"{package} {version}" for package, version in calibration.versions[:3])
    on = f"{calibration.device_count} x {calibration.device_kind}, driver {calibration.driver}; {versions}"
    table = Table(
        title=on,
        columns=columns("what", "type and size", ">figure", ">spread", ">runs"),
        rows=rows,
        notes=(calibration.source, f"{calibration.seconds:.0f} s in all."),
    )
    warning = (Text(text=_WARNING),) if calibration.smoke else ()
    return Section(title="Calibration", parts=(*warning, table))


def figure(measured: Measured) -> str:
    """A figure with its unit.

    Example:
      >>> figure(Measured(what="matmul", detail="", value=7.9e14, unit="FLOP/s"))
      '790.0 TFLOP/s'
    """
    match measured.unit:
        case "FLOP/s":
            return f"{measured.value / 1e12:.1f} TFLOP/s"
        case "bytes/s":
            return f"{measured.value / 1e9:.1f} GB/s"
        case "share":
            return f"{measured.value:.0%}"
        case _:
            return format_seconds(measured.value)
