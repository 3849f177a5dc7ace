"""The shell: verbs over the same functions that Python users call.

Read in this order: `interrupt` (Ctrl-C), `console` (what every verb shares), `user_errors` (exceptions of the user's
code), `reference` (a step by its name), a verb, `app`. `main` sets the process up before jax is loaded, and runs.

Verbs import what they need when they are called: `--help`, `--version` and mistyped words are answered without jax.
"""

import os
import sys
from pathlib import Path

from jaxckpt.cli.interrupt import EXIT_INTERRUPTED, end_on_interrupt, say_interrupted

_DEVICE_NODES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/accel0", "/dev/vfio/0", "/dev/kfd")


def main() -> None:
    """Runs the shell and exits with its code."""
    try:
        end_on_interrupt()
        look_for_no_accelerator_where_none_is()
        from jaxckpt.cli.app import app
        from jaxckpt.cli.console import run

        code: int | str | None = run(app)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except SystemExit as ended:
        code = ended.code
    if code == EXIT_INTERRUPTED:
        say_interrupted()
    sys.exit(code)


def look_for_no_accelerator_where_none_is() -> None:
    """Keeps jax from trying plugins whose device is not there; jax reads the variable when it is imported.

    With the wheels of compile-only targets installed on a machine without their devices, jax would print long
    tracebacks at its start before it falls back to the processor.
    """
    if "JAX_PLATFORMS" not in os.environ and not any(Path(node).exists() for node in _DEVICE_NODES):
        os.environ["JAX_PLATFORMS"] = "cpu"
