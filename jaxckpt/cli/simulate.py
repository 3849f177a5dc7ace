"""`jaxckpt simulate`: rules of eviction on a step, over shares of its memory, with our static optimum beside them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from jaxckpt._errors import BudgetError
from jaxckpt.cli.console import Json, Reference, Shell


def simulate(
    reference: Reference,
    evictors: Annotated[str, typer.Option(help="Evictors, with commas: dtr, dte, coop, lru, ...")] = "dtr,dte,coop",
    ratios: Annotated[str, typer.Option(help='"0.3:0.9", "0.3:0.9:0.05" or "0.5,0.6".')] = "0.3:0.9",
    target: Annotated[str, typer.Option(help="The machine whose rates price the ops; see jaxckpt targets.")] = "h200",
    basis: Annotated[str, typer.Option(help="kernels (as compiled) or eager (op by op).")] = "kernels",
    optimum: Annotated[bool, typer.Option(help="Add the static optimum.")] = True,
    steps: Annotated[int, typer.Option(help="Training steps, one after the other in the same memory.")] = 3,
    html: Annotated[Path | None, typer.Option(help="Where to write the result as an HTML page with charts.")] = None,
    watch: Annotated[Path | None, typer.Option(help="Where to write a page that shows memory call by call.")] = None,
    at: Annotated[float, typer.Option(help="The share of memory for that page.")] = 0.5,
    json: Json = False,
) -> None:
    """Simulate DTR, DTE and Coop on a training step under shares of its memory."""
    shares = parse_ratios(ratios)
    names = tuple(name.strip() for name in evictors.split(",") if name.strip())
    from jaxckpt.cli.reference import load_step
    from jaxckpt.dynamic import address_maps, compare_evictors, evictions_report, stepper_page
    from jaxckpt.report import save_text

    shell = Shell(html, watch, json=json)
    with shell.progress() as say:
        step: Any = load_step(reference)  # in the place of a function and its arguments
        asked: dict[str, Any] = {"evictors": names, "target": target, "basis": basis, "steps": steps}
        found = compare_evictors(step, ratios=shares, optimum=optimum, progress=say, **asked)
        if watch is not None:
            say(f"following every value at {at:g}")
            maps = address_maps(step, ratio=at, **asked)
            save_text(stepper_page(maps, title=f"{reference} at {at:g} of its memory"), watch)
    shell.show(evictions_report(found), found, page=html, title=f"jaxckpt simulate {reference}")


def parse_ratios(text: str) -> tuple[float, ...]:
    """Reads shares of memory: a list with commas, or a range with its ends included, by tenths or by its third number.

    Example:
      >>> parse_ratios("0.3:0.5"), parse_ratios("0.5,0.75"), parse_ratios("0.5:0.6:0.05")
      ((0.3, 0.4, 0.5), (0.5, 0.75), (0.5, 0.55, 0.6))
    """
    try:
        shares = _range(*map(float, text.split(":"))) if ":" in text else tuple(map(float, text.split(",")))
    except (ValueError, TypeError, ArithmeticError):
        shares = ()
    if not shares or not all(0 < share <= 1 for share in shares):
        raise BudgetError(
            f"--ratios {text} are no shares of memory.",
            got=repr(text),
            needed='shares above 0 and at most 1: "0.3:0.9", "0.3:0.9:0.05" or "0.5,0.6"',
            advice="--ratios 0.3:0.9",
            text=text,
        )
    return shares


def _range(first: float, last: float, step: float = 0.1) -> tuple[float, ...]:
    return tuple(round(first + i * step, 6) for i in range(int((last - first) / step + 1e-6) + 1))
