"""Memory under rules of eviction, call by call: a slider, and for each rule what lies where, then and all along.

A piece of HTML for a notebook or a page, which needs nothing else and fetches nothing. Rules stand below one another at
the same call of the program, so that one can watch one of them fall apart and the other not. Read after `page`.
"""

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from jaxckpt.dynamic import AddressMap
from jaxckpt.report.picture.page import embedded_json

KINDS = ("state", "dense", "cheap")
_WIDTH, _HEIGHT = 900, 130


def stepper(maps: Mapping[str, AddressMap]) -> str:
    """HTML in which one steps through runs of a program.

    Args:
      maps: By the name that is shown; all of one program.

    Returns:
      One element. The same maps make the same text.

    Example:
      >>> from jaxckpt.dynamic import address_map, unit_chain
      >>> chain = unit_chain(8)
      >>> text = stepper({rule: address_map(chain, budget=4, evictor=rule) for rule in ("dtr_eq", "coop")})
      >>> text.count("<canvas"), text.count("<input")
      (4, 1)
    """
    data = embedded_json([_data(name, each) for name, each in maps.items()])
    name = f"jaxckpt-stepper-{hashlib.sha256(data.encode()).hexdigest()[:12]}"
    last = max((max(each.calls, default=0) for each in maps.values()), default=0)
    script = files("jaxckpt.dynamic.compare").joinpath("page.js").read_text(encoding="utf-8")
    rows = "".join(
        f'<p class="words"></p><canvas class="now" width="{_WIDTH}" height="34"></canvas>'
        f'<canvas class="whole" width="{_WIDTH}" height="{_HEIGHT}"></canvas>'
        for _ in maps
    )
    return (
        f'<div id="{name}" style="font: 13px/1.45 system-ui, sans-serif; max-width: {_WIDTH}px">'
        f"<style>#{name} canvas {{ display: block; width: 100%; margin: 2px 0 }} #{name} p {{ margin: .5em 0 .1em }}"
        f" #{name} p.words {{ font-variant-numeric: tabular-nums }} #{name} input {{ width: 70% }}</style>"
        '<p><button type="button">play</button> '
        f'<input type="range" min="0" max="{last}" value="0" aria-label="call"> <span class="call"></span></p>'
        "<p>grey: parameters and states; blue: products; orange: all else; empty: free. A red mark above a run is a"
        f" request that no free piece could serve.</p>{rows}</div>"
        f'<script>(function (root, maps) {{ {script} }})(document.getElementById("{name}"), {data});</script>'
    )


def stepper_page(maps: Mapping[str, AddressMap], *, title: str = "jaxckpt") -> str:
    """The same as a page.

    Args:
      maps: As `stepper`'s.
      title: Of the window; letters, digits and punctuation that HTML does not use.

    Example:
      >>> from jaxckpt import dynamic
      >>> chain = dynamic.unit_chain(8)
      >>> maps = {rule: dynamic.address_map(chain, budget=4, evictor=rule) for rule in ("dtr_eq", "coop")}
      >>> page = dynamic.stepper_page(maps, title="A chain of 8")
      >>> "<title>A chain of 8</title>" in page, page.count("<canvas")
      (True, 4)
    """
    plain = "".join(letter for letter in title if letter not in "<>&\"'")
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{plain}</title>'
        "<style>:root { color-scheme: light dark } body { margin: 2em }</style></head>"
        f"<body><h1>{plain}</h1>{stepper(maps)}</body></html>\n"
    )


def _data(name: str, found: AddressMap) -> dict[str, Any]:
    counted = found.simulation
    return {
        "name": name,
        "budget": found.budget_bytes,
        "calls": found.calls,
        "residences": [
            (r.address, r.size_bytes, r.begin, r.end, KINDS.index(r.kind)) for r in found.residences if r.size_bytes
        ],
        "refusals": [(r.execution, r.needed_bytes, r.free_bytes) for r in found.refusals],
        "ended": "" if counted.ok else f"{counted.status}: {counted.reason}",
    }
