"""What every verb shares: where it prints, how it says what it is doing, and how it fails.

Results go to standard output, progress and errors to standard error, so that both can be read by programs. Progress is
a spinner with seconds on a terminal and plain lines elsewhere.
"""

import json as json_module
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from jaxckpt._errors import InfeasibleBudgetError, JaxckptError

EXIT_REFUSED = 2
EXIT_INFEASIBLE = 3


class Shell:
    """A verb's way to the outside."""

    def __init__(self, *, json: bool = False):
        self.out = Console(width=None if sys.stdout.isatty() else 140)
        self.err = Console(stderr=True)
        self._quiet = json

    @contextmanager
    def progress(self) -> Iterator[Callable[[str], None]]:
        """Gives a function that says what is being done now; each sentence stands until the next."""
        started = time.perf_counter()
        if not self.err.is_terminal:
            yield lambda sentence: self._line(sentence, started)
            return
        with self.err.status("starting") as status:

            def say(sentence: str) -> None:
                status.update(f"{sentence} ({time.perf_counter() - started:.0f} s so far)")

            yield say

    def print_json(self, data: Any) -> None:
        """Prints one JSON object to standard output, and nothing else."""
        sys.stdout.write(json_module.dumps(data, indent=2) + "\n")

    def _line(self, sentence: str, started: float) -> None:
        if not self._quiet:
            self.err.print(f"[{time.perf_counter() - started:6.1f} s] {sentence}", markup=False, highlight=False)


def run(verb: Callable[[], Any]) -> int:
    """Runs a verb; an error of ours becomes its four lines and an exit code.

    Returns:
      0, 2 for what was refused, 3 for a budget that cannot be met, 130 for an interrupt. Exceptions that are not
      ours, such as the user's own while tracing, pass through with their traceback.
    """
    try:
        verb()
    except JaxckptError as error:
        Console(stderr=True).print(f"{type(error).__name__}: {error}", style="red", markup=False, highlight=False)
        return EXIT_INFEASIBLE if isinstance(error, InfeasibleBudgetError) else EXIT_REFUSED
    except KeyboardInterrupt:
        return 130
    return 0
