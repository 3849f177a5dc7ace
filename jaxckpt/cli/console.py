"""Output, progress and errors, the same for every command.

Results go to standard output, progress and errors to standard error, so that both can be read by programs. Progress is
a spinner with running seconds on a terminal, and plain lines elsewhere and beside JSON.
"""

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxckpt._errors import InfeasibleBudgetError, JaxckptError
from jaxckpt._units import format_seconds
from jaxckpt.cli.interrupt import EXIT_INTERRUPTED, is_interrupted
from jaxckpt.cli.user_errors import print_user_error

if TYPE_CHECKING:  # rich takes as long to import as numpy, and reports load jax
    from rich.console import Console

    from jaxckpt.machine import Target
    from jaxckpt.report import Element

EXIT_FAILED = 1
EXIT_REFUSED = 2
EXIT_INFEASIBLE = 3

Reference = Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="A function that returns (step, args).")]
TargetName = Annotated[str, typer.Option(help="The machine to compile for; see jaxckpt targets.")]
PolicyName = Annotated[str | None, typer.Option(help="A ready policy's name, or a policy file.")]
Page = Annotated[Path | None, typer.Option(help="Where to write the result as an HTML page.")]
All = Annotated[bool, typer.Option("--all", help="Print long tables whole.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

Say = Callable[[str], None]
"""Told what is being done now; each sentence stands until the next."""


class Shell:
    """A verb's way to the outside; outputs that no file can be written to are refused before anything runs."""

    def __init__(self, *outputs: Path | None, json: bool = False):
        from rich.console import Console

        for path in filter(None, outputs):
            from jaxckpt.report import require_report_folder

            require_report_folder(path)
        self.out = Console(width=_width())
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

    def show(
        self, report: "Element", data: Any, *, unfold: bool = False, page: Path | None = None, title: str = ""
    ) -> None:
        """Prints a report, or for JSON its data: plain data or a dataclass, as one object and nothing else.

        Without a terminal there are no colours and no trailing blanks. With `page` the report is written there too.
        """
        import json

        from jaxckpt.report import print_report, render_text, save_page

        if page is not None:
            save_page(report, page, title=title)
        if self._json:
            is_record = dataclasses.is_dataclass(data) and not isinstance(data, type)
            sys.stdout.write(json.dumps(dataclasses.asdict(data) if is_record else data, indent=2) + "\n")
        elif sys.stdout.isatty():
            print_report(report, self.out, unfold=unfold)
        else:
            text = render_text(report, width=self.out.width, unfold=unfold)
            encoding = sys.stdout.encoding or "utf-8"
            sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding))


def compiled_target(name: str) -> "Target":
    """A target by its name whose compiler is installed: worth asking before the user's code runs."""
    from jaxckpt.machine import Target

    target = Target(name)
    target.require_compiler()
    return target


def run(verb: Callable[[], Any]) -> int:
    """Runs a verb; an error of ours becomes its four lines and an exit code, one of the user's code its own frames.

    The code is 0, 1 for an error of the user's code, 2 for what was refused, 3 for a budget that cannot be met, 130 for
    an interrupt.
    """
    try:
        code = verb()  # an integer where a verb ends early and the parser of the command line does not exit itself
    except JaxckptError as error:
        print_error(error)
        return EXIT_INFEASIBLE if isinstance(error, InfeasibleBudgetError) else EXIT_REFUSED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        if is_interrupted():
            return EXIT_INTERRUPTED
        print_user_error(error)
        return EXIT_FAILED
    return code if isinstance(code, int) else 0


def print_error(error: JaxckptError) -> None:
    """Prints the four lines of an error to standard error, in red; not wrapped, so that they can be searched."""
    from rich.console import Console

    console = Console(stderr=True)
    console.print(f"{type(error).__name__}: {error}", style="red", markup=False, highlight=False, soft_wrap=True)


def _width() -> int | None:
    """Columns of the output: those of the terminal or of COLUMNS, which rich reads; no limit where neither is there."""
    from jaxckpt.report.text import UNLIMITED

    return None if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit() else UNLIMITED


@contextmanager
def _spinner(console: "Console") -> Iterator[Say]:
    """One line that turns and counts; what is done moves above it, with the time that it took."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

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
def _lines(console: "Console") -> Iterator[Say]:
    """One line for each sentence, with the seconds since the start."""
    started = time.perf_counter()

    def say(sentence: str) -> None:
        line = f"[{time.perf_counter() - started:6.1f} s] {sentence}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    yield say
    say("done")
