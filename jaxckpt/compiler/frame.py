"""Data as pandas frames, for those who have pandas: it is loaded only here, and only when asked.

Read after `footprint_data`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from jaxckpt._errors import MissingPackageError
from jaxckpt.compiler.footprint_data import Footprint
from jaxckpt.hlo import Buffer, MemoryMap

_BUFFER = tuple(each.name for each in fields(Buffer))
_COLUMNS = (*_BUFFER, "use", "space", "at_peak")


def footprint_frame(footprint: Footprint) -> Any:
    """The buffers of a footprint as a pandas frame, one row each in the order of their ids; none without a memory map.

    The columns are the attributes of `jaxckpt.hlo.Buffer`, what its allocation is for, where it lies, and whether it is
    a temporary alive at the peak. Raises a `MissingPackageError` without pandas.
    """
    rows = () if footprint.memory is None else _buffers(footprint.memory)
    return frame_of_rows(rows, columns=_COLUMNS, called="Footprint.to_frame")


def frame_of_rows(rows: Iterable[Mapping[str, Any]], *, columns: Sequence[str], called: str) -> Any:
    """Rows as a pandas frame; the error without pandas names the caller."""
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingPackageError(
            f"{called} needs pandas, which is not installed.",
            got=str(error),
            needed="pandas",
            advice='pip install "jaxckpt[pandas]"',
            package="pandas",
        ) from error
    return pd.DataFrame(list(rows), columns=list(columns))


def _buffers(memory: MemoryMap) -> Iterator[dict[str, Any]]:
    at_peak = {buffer.id for buffer in memory.alive_at(memory.peak)}
    for buffer in memory.buffers:
        allocation = memory.by_index[buffer.allocation]
        known = {name: getattr(buffer, name) for name in _BUFFER}
        known |= {"part": str(buffer.part), "role": str(buffer.role)}
        yield known | {"use": str(allocation.use), "space": str(allocation.space), "at_peak": buffer.id in at_peak}
