"""`jaxckpt calibrate`: how fast the attached device really is, kept in a file that targets take."""

from pathlib import Path
from typing import Annotated

import typer

from jaxckpt.cli.console import Json, Shell


def calibrate(
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where to write it (TOML).")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="No figure is begun after so many.")] = 75.0,
    small: Annotated[
        bool | None, typer.Option("--small/--full", help="Tiny sizes, a smoke test; the default on processors.")
    ] = None,
    json: Json = False,
) -> None:
    """Measure the attached device, for --target attached@FILE."""
    from jaxckpt.calibration import calibrate as measure
    from jaxckpt.report import calibration_report, require_report_folder

    if output is not None:
        require_report_folder(output)
    shell = Shell(json=json)
    with shell.progress() as say:
        made = measure(seconds=seconds, small=small, progress=say)
    if output is not None:
        made.save(output)
    shell.show(calibration_report(made), made)
