"""The shell's verbs under one name.

Read after `console`.
"""

from importlib import import_module
from typing import Annotated

import typer

from jaxckpt._version import __version__

VERBS = {
    "demo": "demo",
    "plan": "plan",
    "pareto": "search",
    "max_batch": "search",
    "analyze": "footprint",
    "footprint": "footprint",
    "compare": "compare",
    "lint": "checks",
    "simulate": "simulate",
    "verdicts": "checks",
    "verify": "checks",
    "targets": "devices",
    "calibrate": "devices",
    "bench": "devices",
    "explain_oom": "explain_oom",
}
"""In the order of the help; each is a function in a file of this room."""

app = typer.Typer(
    name="jaxckpt",
    help="Fits JAX training steps into the memory of a device, checked by the XLA compiler.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for verb, file in VERBS.items():
    app.command()(getattr(import_module(f"jaxckpt.cli.{file}"), verb))


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"jaxckpt {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Fits JAX training steps into the memory of a device, checked by the XLA compiler."""
