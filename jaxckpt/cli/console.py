"""Output, progress and errors, the same for every command.

Results go to standard output, progress and errors to standard error, so that both can be read by programs. Progress is
a spinner with running seconds on a terminal, and plain lines elsewhere and beside JSON.
"""

import dataclasses
import json as json_module
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from jaxckpt._errors import InfeasibleBudgetError, JaxckptError
from jaxckpt._units import format_seconds
from jaxckpt.report import print_report
from jaxckpt.report.tree import Element

EXIT_REFUSED = 2
EXIT_INFEASIBLE = 3
EXIT_INTERRUPTED = 130

Reference = Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="What returns (step, args).")]
TargetName = Annotated[str, typer.Option(help="The machine to compile for; see jaxckpt targets.")]
PolicyName = Annotated[str | None, typer.Option(help="A ready policy's name, or a policy file.")]
Page = Annotated[Path | None, typer.Option(help="Where to write it as a page.")]
All = Annotated[bool, typer.Option("--all", help="Print long tables whole.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

Say = Callable[[str], None]
"""Told what is being done now; each sentence stands until the next."""


class Shell:
    """A verb's way to the outside."""

    def __init__(self, *, json: bool = False):
        self.out = Console(width=None if sys.stdout.isatty() else 140)
        self.err = Console(stderr=True)
        self._json = json

    @contextmanager
    def progress(self) -> Iterator[Say]:
        """Says what is being done and for how long, while the user's code and the compiler run.

        Beside JSON, what the user's code prints goes to standard error: standard output is one object.
        """
        with ExitStack() as stack:
            if self._json:
                stack.enter_context(redirect_stdout(sys.stderr))
            if self.err.is_terminal and not self._json:
                yield stack.enter_context(_spinner(self.err))
            else:
                yield stack.enter_context(_lines(self.err))

    def show(self, report: Element, data: Any, *, unfold: bool = False) -> None:
        """Prints a report, or for JSON its data: plain data or a dataclass, as one object and nothing else."""
        if self._json:
            plain = dataclasses.asdict(data) if dataclasses.is_dataclass(data) else data
            sys.stdout.write(json_module.dumps(plain, indent=2) + "\n")
        else:
            print_report(report, self.out, unfold=unfold)


def run(verb: Callable[[], Any]) -> int:
    """Runs a verb; an error of ours becomes its four lines and an exit code; others pass through.

    The code is 0, 2 for what was refused, 3 for a budget that cannot be met, 130 for an interrupt.
    """
    try:
        verb()
    except JaxckptError as error:
        print_error(error)
        return EXIT_INFEASIBLE if isinstance(error, InfeasibleBudgetError) else EXIT_REFUSED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


def print_error(error: JaxckptError) -> None:
    """Prints the four lines of an error to standard error, in red; not wrapped, so that they can be searched."""
    console = Console(stderr=True)
    console.print(f"{type(error).__name__}: {error}", style="red", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _spinner(console: Console) -> Iterator[Say]:
    """One line that turns and counts; what is done moves above it, with the time that it took."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:

        def end() -> None:
            for task in progress.tasks:
                line = f"  {task.description}: {format_seconds(task.elapsed or 0.0)}"
                console.print(line, style="dim", markup=False, highlight=False)
                progress.remove_task(task.id)

        def begin(sentence: str) -> None:
            end()
            progress.add_task(sentence, total=None)

        yield begin
        end()


@contextmanager
def _lines(console: Console) -> Iterator[Say]:
    """One line for each sentence, with the seconds since the start."""
    started = time.perf_counter()

    def say(sentence: str) -> None:
        line = f"[{time.perf_counter() - started:6.1f} s] {sentence}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    yield say
    say("done")
