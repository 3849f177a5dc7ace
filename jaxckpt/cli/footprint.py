"""Verbs that say where the bytes are: `jaxckpt analyze` without compiling, `footprint` by the compiler."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxckpt._errors import ReportFileError
from jaxckpt._files import write_atomically
from jaxckpt.cli.console import All, Json, Reference, Say, Shell, TargetName, compiled_target

if TYPE_CHECKING:
    from jaxckpt.compiler import Footprint

_METAVAR = "MODULE:FUNCTION|FILE|FOLDER"
_WORDS = "A function that returns (step, args), a saved footprint (.json), or XLA's dump."
_DRAWN = (".html", ".png", ".svg", ".pdf")
_TRACED = (".trace.json", ".trace.json.gz")
_SAVED = (".json", ".json.gz")
_PROGRAM = (".hlo.pb",)
_FORMS = (*_DRAWN, *_SAVED, *_TRACED, *_PROGRAM)


def analyze(
    reference: Reference,
    target: Annotated[str, typer.Option(help="The machine whose rates the estimates use.")] = "h200",
    depth: Annotated[int | None, typer.Option(min=1, help="Add up scopes below this depth.")] = None,
    json: Json = False,
) -> None:
    """Show what a training step keeps from forward to backward, by scope."""
    from jaxckpt.cli.reference import load_step
    from jaxckpt.planner import analyze as analyze_step
    from jaxckpt.report import analysis_report

    shell = Shell(json=json)
    with shell.progress() as say:
        step = load_step(reference)
        say("tracing the step")
        analysis = analyze_step(step, target=target)
    shell.show(analysis_report(analysis, depth=depth), analysis, unfold=True)


def footprint(
    reference: Annotated[str, typer.Argument(metavar=_METAVAR, help=_WORDS)],
    target: TargetName = "h200",
    depth: Annotated[int | None, typer.Option(min=1, help="Add up scopes below this depth.")] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "-o",
            "--output",
            help="Where to write a picture (.html, .png, .svg, .pdf), a footprint (.json, .json.gz), a trace for"
            " Perfetto (.trace.json) or the program for XProf's memory viewer (.hlo.pb).",
        ),
    ] = None,
    everything: All = False,
    json: Json = False,
) -> None:
    """Show the memory of a compiled training step: totals, the peak, scopes."""
    from jaxckpt.report import footprint_report

    outputs = tuple(output or ())
    shell = Shell(*outputs, json=json)
    for path in outputs:
        _refuse_unknown_form(path)
    with shell.progress() as say:
        made, program = _made(reference, target, say)
        for path in outputs:
            say(f"writing {path}")
            _write(made, program, path)
    shell.show(footprint_report(made, depth=depth), footprint_data(made), unfold=everything)


def footprint_data(made: "Footprint") -> dict[str, Any]:
    """A footprint as plain data: its figures, and where its peak is."""
    plain = made.to_dict() | {"total_bytes": made.total_bytes, "host_bytes": made.host_bytes}
    if made.memory is None:
        return plain
    memory = made.memory
    kernel = memory.kernels[memory.peak] if memory.kernels else None
    return plain | {
        "peak_bytes": memory.peak_bytes,
        "peak_kernel": None if kernel is None else kernel.name,
        "peak_scope": None if kernel is None else kernel.scope,
        "fragmentation": memory.fragmentation,
    }


def _made(reference: str, target: str, say: Say) -> "tuple[Footprint, bytes | None]":
    """A file or folder is read, anything else compiled as a step; then the program is there too."""
    from jaxckpt.cli.reference import load_step
    from jaxckpt.comparison import footprint_of_path
    from jaxckpt.compiler import compile_step

    if Path(reference).exists():
        say(f"reading {reference}")
        return footprint_of_path(reference, target=target), None
    machine = compiled_target(target)
    step = load_step(reference)
    say(f"compiling for {target}")
    compiled = compile_step(step, target=machine)
    return compiled.footprint, compiled.program


def _refuse_unknown_form(path: Path) -> None:
    if not path.name.endswith(_FORMS):
        raise ReportFileError(
            f"jaxckpt footprint: the form of {str(path)!r} is not known by its name.",
            got=path.suffix or "no suffix",
            needed=", ".join(_FORMS),
            advice=f"-o {path.with_suffix('.html')}",
            path=path,
        )


def _write(made: "Footprint", program: bytes | None, path: Path) -> None:
    from jaxckpt.report.picture import draw
    from jaxckpt.report.trace_events import save_trace

    if path.name.endswith(_TRACED):
        save_trace(made, path)
    elif path.name.endswith(_SAVED):
        made.save(path)
    elif not path.name.endswith(_PROGRAM):
        draw(made, path)
    elif program is not None:
        write_atomically(path, program)
    else:
        raise ReportFileError(
            f"jaxckpt footprint: there is no program to write to {str(path)!r}.",
            got="a saved footprint or a dump, or a compiler that wrote none",
            needed="a step that is compiled now",
            advice="hand in module:function; a dump's own *after_optimizations.hlo.pb can be opened as it is",
            path=path,
        )
