"""Memory under rules of eviction, call by call: memory maps of simulated runs on one page, with a slider over calls.

A run is drawn as a memory map: an execution of a call is a kernel, a value in one place for some time is a buffer, and
the budget is one allocation. Runs stand below one another at the same call of the program, so that free memory and its
pieces can be compared there. Read after `report`.
"""

import html
from bisect import insort
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate

from jaxckpt.dynamic import AddressMap
from jaxckpt.hlo import Allocation, Buffer, Kernel, MemoryMap, Part, Use
from jaxckpt.report.picture import Picture
from jaxckpt.report.picture.page import PageMap, PageState, PageWords, map_page, page_pictures

_KINDS = {"state": "parameters and states", "dense": "products", "cheap": "all else"}
_WORDS = PageWords(
    clock="execution", time_axis="executions of calls, repetitions included", layers="Values", kernels="Calls"
)
_FRAME_HEIGHT, _RUN_HEIGHT = 240, 560
"""Pixels of a page in a notebook, and of each run on it."""


def stepper(maps: Mapping[str, AddressMap]) -> str:
    """HTML in which one steps through runs of a program.

    Args:
      maps: By the name that is shown; all of one program.

    Returns:
      One element with a frame around the page of `stepper_page`. The same maps make the same text.

    Example:
      >>> from jaxckpt.dynamic import address_map, unit_chain
      >>> chain = unit_chain(8)
      >>> text = stepper({rule: address_map(chain, budget=4, evictor=rule) for rule in ("dtr_eq", "coop")})
      >>> text.startswith("<div><iframe srcdoc="), text.endswith("</iframe></div>")
      (True, True)
    """
    page = html.escape(stepper_page(maps, title="Memory, call by call"), quote=True)
    height = _FRAME_HEIGHT + _RUN_HEIGHT * len(maps)
    style = f"width: 100%; height: {height}px; border: 0"
    # In an element of its own: of a frame alone IPython warns that its IFrame should be used, which takes an address.
    return f'<div><iframe srcdoc="{page}" style="{style}" title="Memory, call by call"></iframe></div>'


def stepper_page(maps: Mapping[str, AddressMap], *, title: str = "jaxckpt") -> str:
    """The same as a page, which needs nothing else and fetches nothing.

    Args:
      maps: As `stepper`'s.
      title: Of the window, and heading.

    Example:
      >>> from jaxckpt import dynamic
      >>> chain = dynamic.unit_chain(8)
      >>> maps = {rule: dynamic.address_map(chain, budget=4, evictor=rule) for rule in ("dtr_eq", "coop")}
      >>> page = dynamic.stepper_page(maps, title="A chain of 8")
      >>> "<title>A chain of 8</title>" in page
      True
    """
    pictures = page_pictures([_memory(name, found) for name, found in maps.items()])
    shown = [_page_map(picture, name, maps[name]) for picture, name in zip(pictures, maps, strict=True)]
    return map_page(shown, title=title, words=_WORDS)


def _page_map(picture: Picture, name: str, found: AddressMap) -> PageMap:
    labels = {Part.UNKNOWN.value: "first time", Part.RECOMPUTE.value: Part.RECOMPUTE.value}
    parts = tuple(replace(each, label=labels[each.label]) for each in picture.parts)
    states = tuple(_states(found))
    figures = (
        ("memory", found.budget_bytes),
        ("executions of calls", str(len(found.calls))),
        ("of these repeated", str(states[-1].repeated if states else 0)),
        ("requests refused", str(len(found.refusals))),
    )
    return PageMap(picture=replace(picture, parts=parts, phases=()), name=name, figures=figures, states=states)


def _memory(name: str, found: AddressMap) -> MemoryMap:
    last, counted = len(found.calls) - 1, found.simulation
    residences = [each for each in found.residences if each.size_bytes and last >= 0]
    return MemoryMap(
        program=name,
        kernels=tuple(
            Kernel(name=f"call {call}", opcode="call", part=Part.RECOMPUTE if is_repeated else Part.UNKNOWN)
            for call, is_repeated in zip(found.calls, _repeated(found), strict=True)
        ),
        buffers=tuple(
            Buffer(
                id=number,
                size_bytes=each.size_bytes,
                offset_bytes=each.address,
                allocation=0,
                born=min(each.begin, last),
                dies=max(min(each.begin, last), min(each.end - 1, last)),
                dtype="",
                shape=(),
                name=f"tensor {each.tensor}",
                scope=_KINDS[each.kind],
            )
            for number, each in enumerate(residences)
        ),
        allocations=(Allocation(index=0, size_bytes=found.budget_bytes, use=Use.TEMPORARY),),
        problems=() if counted.ok else (f"it had to stop: {counted.status}: {counted.reason}",),
    )


def _repeated(found: AddressMap) -> Iterator[bool]:
    """For each execution, True if its call was executed before."""
    executed: set[int] = set()
    for call in found.calls:
        yield call in executed
        executed.add(call)


def _states(found: AddressMap) -> Iterator[PageState]:
    """Counters at each execution; linear in executions times the values that are alive."""
    begins: dict[int, list[tuple[int, int]]] = {}
    ends: dict[int, list[tuple[int, int]]] = {}
    for each in found.residences:
        if each.size_bytes and each.begin < each.end:
            begins.setdefault(each.begin, []).append((each.address, each.size_bytes))
            ends.setdefault(each.end, []).append((each.address, each.size_bytes))
    refused = [refusal.execution for refusal in found.refusals]
    alive: list[tuple[int, int]] = []
    for at, (call, repeated) in enumerate(zip(found.calls, accumulate(map(int, _repeated(found))), strict=True)):
        for gone in ends.get(at, ()):
            alive.remove(gone)
        for come in begins.get(at, ()):
            insort(alive, come)
        yield PageState(
            tick=call,
            free_bytes=found.budget_bytes - sum(size_bytes for _, size_bytes in alive),
            piece_bytes=_largest_piece(alive, found.budget_bytes),
            repeated=repeated,
            refused=sum(execution <= at for execution in refused),
        )


def _largest_piece(alive: list[tuple[int, int]], budget_bytes: int) -> int:
    """The largest free piece between values, given in the order of their addresses."""
    end = largest = 0
    for address, size_bytes in [*alive, (budget_bytes, 0)]:
        largest, end = max(largest, address - end), max(end, address + size_bytes)
    return largest
