"""The shell's verbs under one name.

Read after `console`.
"""

from typing import Annotated

import typer

from jaxckpt._version import __version__
from jaxckpt.cli.analyze import analyze
from jaxckpt.cli.bench import bench
from jaxckpt.cli.calibrate import calibrate
from jaxckpt.cli.compare import compare
from jaxckpt.cli.demo import demo
from jaxckpt.cli.explain_oom import explain_oom
from jaxckpt.cli.footprint import footprint
from jaxckpt.cli.lint import lint
from jaxckpt.cli.max_batch import max_batch
from jaxckpt.cli.pareto import pareto
from jaxckpt.cli.plan import plan
from jaxckpt.cli.simulate import simulate
from jaxckpt.cli.targets import targets
from jaxckpt.cli.verdicts import verdicts
from jaxckpt.cli.verify import verify

app = typer.Typer(
    name="jaxckpt",
    help="Fits JAX training steps into memory, and proves it with the XLA compiler.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for verb in (
    demo,
    plan,
    pareto,
    max_batch,
    analyze,
    footprint,
    compare,
    lint,
    simulate,
    verdicts,
    verify,
    targets,
    calibrate,
    bench,
    explain_oom,
):
    app.command()(verb)


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
    """Fits JAX training steps into memory, and proves it with the XLA compiler."""
