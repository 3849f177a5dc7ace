"""Pictures of where the bytes are: a memory map as PNG, SVG, PDF or an interactive page.

Read in this order: `groups` (what a layer is, and its colour), `layout` (from a map to rectangles and curves), then
`figure` and `page`, which draw what `layout` placed. They draw no footprint whose program was not read.
"""

from pathlib import Path

from jaxckpt._errors import PictureError
from jaxckpt._files import write_to_place
from jaxckpt.compiler import Footprint
from jaxckpt.hlo import MemoryMap
from jaxckpt.report.picture.figure import SUFFIXES, memory_figure as memory_figure, save_figure as save_figure
from jaxckpt.report.picture.layout import Picture as Picture, layout as layout
from jaxckpt.report.picture.page import memory_page as memory_page


def draw(footprint: Footprint | MemoryMap, path: str | Path, *, title: str | None = None) -> None:
    """Draws the memory map of a compiled step's temporaries into one file.

    Time runs from left to right, addresses from bottom to top. Each buffer is a rectangle, coloured by layer; below
    them the bytes alive are stacked by layer. Arguments are alive all the time and are not drawn.

    Args:
      footprint: From `jaxckpt.footprint`, or its `memory`.
      path: Of the file, which is replaced. Its ending chooses the format: ".html" is one interactive page that fetches
        nothing; ".png", ".svg" and ".pdf" are drawn by matplotlib.
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
    memory = footprint.memory if isinstance(footprint, Footprint) else footprint
    if not isinstance(memory, MemoryMap):
        target = footprint.target if isinstance(footprint, Footprint) else None
        raise PictureError(
            f"draw({path.name!r}): there is no memory map to draw.",
            got=type(footprint).__name__ if target is None else f"a footprint for {target!r} without memory map",
            needed="a footprint whose program was read (`footprint.memory`), or a MemoryMap",
            advice=f'jaxckpt.draw(jaxckpt.footprint(step, *args, target="h200"), "{path.name}")',
            path=path,
        )
    if title is None and isinstance(footprint, Footprint) and footprint.target:
        title = f"{memory.program} on {footprint.target}"
    if suffix == ".html":
        total_bytes = footprint.total_bytes if isinstance(footprint, Footprint) else None
        page = memory_page(memory, title=title, total_bytes=total_bytes).encode()
        write_to_place(path, page, called=f"draw to {str(path)!r}", error=PictureError)
    elif suffix in SUFFIXES:
        save_figure(memory, path, title=title)
    else:
        raise PictureError(
            f"draw: no picture is kept as {path.name!r}.",
            got=f"the ending {path.suffix!r}",
            needed=", ".join((".html", *SUFFIXES)),
            advice=f'"{path.with_suffix(".html")}"' if path.name else '"memory.html"',
            path=path,
        )
