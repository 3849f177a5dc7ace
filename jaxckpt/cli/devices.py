"""Verbs about machines: `jaxckpt targets`, and `calibrate` and `bench --attached` for the device that is attached.

The models of `bench` are those of the source checkout's benchmarks, which no wheel has; it hands its words on to them.
"""

import dataclasses
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from jaxckpt._errors import MissingPackageError
from jaxckpt.cli.console import Json, Shell


def targets(json: Json = False) -> None:
    """List targets: what is usable here, and what to install for the rest."""
    from jaxckpt.machine import targets as known_targets
    from jaxckpt.report import targets_report

    statuses = known_targets()
    Shell(json=json).show(targets_report(statuses), {"targets": [dataclasses.asdict(status) for status in statuses]})


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
    from jaxckpt.report import calibration_report

    shell = Shell(output, json=json)
    with shell.progress() as say:
        made = measure(seconds=seconds, small=small, progress=say)
    if output is not None:
        made.save(output)
    shell.show(calibration_report(made), made)


def bench(
    attached: Annotated[bool, typer.Option("--attached", help="Use the attached device (required).")],
    seconds: Annotated[float, typer.Option(min=1, help="Limit for all measurements.")] = 540.0,
    out: Annotated[Path | None, typer.Option(help="Folder of the result; an existing result is continued.")] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="A model; may be repeated, the first is measured fully.")
    ] = None,
    small: Annotated[
        bool, typer.Option("--small", help="A smoke test with tiny sizes; the default without GPU.")
    ] = False,
) -> None:
    """Compare predictions and plans with the attached device, within a budget of seconds."""
    del attached
    words = ["--seconds", str(seconds)]
    words += [] if out is None else ["--out", str(out.resolve())]
    words += [] if not model else ["--models", *model]
    words += ["--small"] if small else []
    benchmarks().main(words)


def benchmarks() -> Any:
    """The command of the source checkout."""
    try:
        return import_module("benchmarks.attached.__main__")
    except ImportError as error:
        raise MissingPackageError(
            "jaxckpt bench --attached: its models cannot be had.",
            got=str(error),
            needed="a source checkout of jaxckpt in the current folder, flax and optax",
            advice="python -m jaxckpt bench --attached, in the checkout's folder",
            package=error.name,
        ) from error
