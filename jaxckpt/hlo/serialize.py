"""A memory map as numbers, texts and lists, and back: the form of memory maps in files.

Kernels, buffers, allocations and transfers are tables of columns, a fifth of the size of one table each. Reading checks
every type (`jaxckpt._records`), and that positions and allocations exist; a memory map that comes back is equal.

Read after `memory`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxckpt._errors import HloError
from jaxckpt._records import RecordError, read_record, table_from_record
from jaxckpt.hlo.memory import Allocation, Buffer, MemoryMap


def plain_from_memory(memory: MemoryMap) -> dict[str, Any]:
    """A memory map as plain data."""
    return table_from_record(memory)


def memory_from_plain(plain: Mapping[str, Any]) -> MemoryMap:
    """Reads what `plain_from_memory` wrote; an `HloError` names what is missing, mistyped or points nowhere."""
    try:
        memory = read_record(MemoryMap, plain)
        if problems := tuple(_problems(memory)):
            raise RecordError(problems)
    except RecordError as error:
        raise HloError(
            "a memory map cannot be read.",
            got=str(error),
            needed="a memory map as footprint.save writes it",
            advice="make the footprint again, or read it with the version of jaxckpt that wrote it",
        ) from error
    return memory


def _problems(memory: MemoryMap) -> Iterator[str]:
    """Positions, numbers and allocations that do not exist, a sentence each."""
    if [b.id for b in memory.buffers] != list(range(len(memory.buffers))):
        yield "buffers that are not numbered in order"
    last = max(0, len(memory.kernels) - 1)
    if any(not 0 <= t.starts <= min(t.ends, last) or t.ends > last + 1 for t in memory.transfers):
        yield "copies that end before they start, or behind the last kernel"
    for buffer in memory.buffers:
        yield from _buffer_problems(buffer, memory.by_index.get(buffer.allocation), last)


def _buffer_problems(buffer: Buffer, allocation: Allocation | None, last: int) -> Iterator[str]:
    if not 0 <= buffer.born <= buffer.dies <= last:
        yield f"buffer {buffer.id} that lives from {buffer.born} to {buffer.dies} of {last}"
    if allocation is None:
        yield f"buffer {buffer.id} in allocation {buffer.allocation}, which does not exist"
    elif not 0 <= buffer.offset_bytes <= allocation.size_bytes - buffer.size_bytes:
        yield f"buffer {buffer.id} that does not lie in its allocation"
