"""Pictures of where the bytes are: a memory map as PNG, SVG, PDF or an interactive page, several maps as one page.

Read in this order: `groups` (what a layer is, and its colour), `layout` (from a map to rectangles and curves), then
`figure` and `page`, which draw what `layout` placed. A footprint without a memory map cannot be drawn.
"""

from pathlib import Path

from jaxckpt._errors import PictureError
from jaxckpt._files import write_to_place
from jaxckpt.comparison import Comparison
from jaxckpt.compiler import Footprint
from jaxckpt.hlo import MemoryMap
from jaxckpt.report.picture.figure import SUFFIXES, memory_figure as memory_figure, save_figure as save_figure
from jaxckpt.report.picture.layout import Picture as Picture, layout as layout
from jaxckpt.report.picture.page import memory_page as memory_page


def draw(footprint: Footprint | MemoryMap | Comparison, path: str | Path, *, title: str | None = None) -> None:
    """Draws the memory map of a compiled step's temporaries into one file.

    Time runs from left to right, addresses from bottom to top. Each buffer is a rectangle, coloured by layer; below
    them the bytes alive are stacked by layer. Where one layer covers most of the picture, colours tell roles, parts of
    the step or lines of code apart. Arguments are alive all the time and are not drawn.

    Args:
      footprint: From `jaxckpt.footprint`, or its `memory`; or a comparison, whose versions are drawn below one another
        in one page, with equal scales and colours.
      path: Of the file, which is replaced. Its ending chooses the format: ".html" is one interactive page that fetches
        nothing; ".png", ".svg" and ".pdf" are drawn by matplotlib, and hold one map.
      title: Heading of the picture; the program's name and the target if None.

    Raises:
      PictureError: Another ending, a path that cannot be written, or a footprint without memory map.
      MissingPackageError: matplotlib is needed and not installed.

    Example:
      >>> import tempfile
      >>> from jaxckpt.hlo import MemoryMap
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     page = Path(folder, "step.html")
      ...     draw(MemoryMap(program="step", kernels=(), buffers=(), allocations=()), page)
      ...     page.read_text().splitlines()[0]
      '<!doctype html>'
    """
    path = Path(path)
    suffix = path.suffix.lower()
    made = _footprints(footprint)
    maps = {name: each.memory if isinstance(each, Footprint) else each for name, each in made.items()}
    memories = {name: memory for name, memory in maps.items() if isinstance(memory, MemoryMap)}
    if len(memories) < len(maps) or not maps:
        raise PictureError(
            f"draw({path.name!r}): there is no memory map to draw.",
            got=_without_map({name: each for name, each in made.items() if name not in memories}),
            needed="a footprint whose program was read (`footprint.memory`), or a MemoryMap",
            advice=_advice(footprint, path.name),
            path=path,
        )
    first = next(iter(memories))
    if title is None:
        target = getattr(made[first], "target", None)
        title = f"{memories[first].program} on {target}" if target else memories[first].program
    if suffix == ".html":
        totals = {name: each.total_bytes for name, each in made.items() if isinstance(each, Footprint)}
        page = memory_page(memories, title=title, total_bytes=totals).encode()
        write_to_place(path, page, called=f"draw to {str(path)!r}", error=PictureError)
    elif suffix in SUFFIXES and len(memories) == 1:
        save_figure(memories[first], path, title=title)
    else:
        known = suffix in SUFFIXES
        raise PictureError(
            f"draw: no picture {'of several maps ' if known else ''}is kept as {path.name!r}.",
            got=f"{len(memories)} maps" if known else f"the ending {path.suffix!r}",
            needed=".html" if known else ", ".join((".html", *SUFFIXES)),
            advice=f'"{path.with_suffix(".html")}"' if path.name else '"memory.html"',
            path=path,
        )


def _footprints(drawn: object) -> "dict[str, object]":
    """Footprints or memory maps by the names of their versions."""
    return {each.name: each.footprint for each in drawn.versions} if isinstance(drawn, Comparison) else {"": drawn}


def _advice(drawn: object, name: str) -> str:
    if isinstance(getattr(drawn, "footprint", None), Footprint):
        return f'jaxckpt.draw({type(drawn).__name__.lower()}.footprint, "{name}")'
    return f'jaxckpt.draw(jaxckpt.footprint(step, *args, target="h200"), "{name}")'


def _without_map(missing: "dict[str, object]") -> str:
    targets = [each.target for each in missing.values() if isinstance(each, Footprint)]
    kinds = sorted({type(each).__name__ for each in missing.values()})
    if not any(targets):
        return ", ".join(kinds) or "no version"
    named = ", ".join(filter(None, missing))
    return f"a footprint for {targets[0]!r} without memory map" + (f": {named}" if named else "")
