"""`jaxckpt explain-oom`: what XLA's message that memory ran out says, and what would have avoided it."""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxckpt._errors import OutOfMemoryTextError
from jaxckpt.cli.console import Json, Shell

if TYPE_CHECKING:
    from jaxckpt.oom.out_of_memory import OutOfMemory


def explain_oom(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="A log with the message; - is standard input.")],
    json: Json = False,
) -> None:
    """Explain XLA's RESOURCE_EXHAUSTED message: the request, the layers, remedies."""
    from jaxckpt.oom.out_of_memory import read_out_of_memory
    from jaxckpt.report import oom_report

    shell = Shell(json=json)
    data = read_out_of_memory(_text(file))
    shell.show(oom_report(data), oom_data(data))


def oom_data(data: "OutOfMemory") -> dict[str, Any]:
    """A message, its causes and remedies as plain data."""
    from jaxckpt.oom.remedies import classify_buffers, diagnoses, program_budget_bytes, remedies

    plain = dataclasses.asdict(data)
    for buffer, kind in zip(plain["buffers"], classify_buffers(data.buffers), strict=True):
        buffer["sort"] = kind
    return plain | {
        "available_bytes": data.available_bytes,
        "shortfall_bytes": data.shortfall_bytes,
        "need_bytes": data.need_bytes,
        "budget_bytes": program_budget_bytes(data),
        "findings": [dataclasses.asdict(diagnosis) for diagnosis in diagnoses(data)],
        "remedies": [dataclasses.asdict(remedy) for remedy in remedies(data)],
    }


def _text(file: str) -> str:
    if file == "-":
        return sys.stdin.buffer.read().decode(errors="replace")
    try:
        return Path(file).read_bytes().decode(errors="replace")
    except OSError as error:
        raise OutOfMemoryTextError(
            f"{file!r} cannot be read.",
            got=error.strerror or str(error),
            needed="a file with the message, or - for standard input",
            advice="python train.py 2>&1 | jaxckpt explain-oom -",
        ) from error
