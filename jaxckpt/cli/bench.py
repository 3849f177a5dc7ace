"""`jaxckpt bench --attached`: does it hold on this device: memory, seconds, values, and the largest batch.

The models are those of the source checkout's benchmarks, which no wheel has; the verb hands its words on to them.
"""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from jaxckpt._errors import MissingPackageError


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
