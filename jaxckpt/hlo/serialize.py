"""A memory map as numbers, texts and lists, and back: what is kept in files.

Kernels, buffers and allocations are kept by column, which is a fifth of the size of one table each. Reading checks
every type and that positions, places and allocations exist; what comes back is equal or an error.

Read after `memory`.
"""

import enum
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar, get_origin, get_type_hints

from jaxckpt._errors import HloError
from jaxckpt.hlo.memory import Allocation, Buffer, Kernel, MemoryMap, Transfer

_Item = TypeVar("_Item", Kernel, Buffer, Allocation, Transfer)


def plain_from_memory(memory: MemoryMap) -> dict[str, Any]:
    """A memory map as plain data."""
    return {
        "program": memory.program,
        "kernels": _columns(Kernel, memory.kernels),
        "buffers": _columns(Buffer, memory.buffers),
        "allocations": _columns(Allocation, memory.allocations),
        "problems": list(memory.problems),
        "transfers": _columns(Transfer, memory.transfers),
    }


def memory_from_plain(plain: Mapping[str, Any]) -> MemoryMap:
    """Reads what `plain_from_memory` wrote.

    Raises:
      HloError: Something is missing, of a wrong type, or points nowhere.
    """
    try:
        memory = MemoryMap(
            program=_text(plain["program"]),
            kernels=tuple(_items(Kernel, plain["kernels"])),
            buffers=tuple(_items(Buffer, plain["buffers"])),
            allocations=tuple(_items(Allocation, plain["allocations"])),
            problems=tuple(map(_text, plain["problems"])),
            transfers=tuple(_items(Transfer, plain["transfers"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(f"{type(error).__name__}: {error}") from error
    wrong = next(_wrong(memory), None)
    if wrong is not None:
        raise _damaged(wrong)
    return memory


def _damaged(got: str) -> HloError:
    return HloError(
        "a memory map cannot be read.",
        got=got,
        needed="a memory map as footprint.save writes it",
        advice="make the footprint again, or read it with the version of jaxckpt that wrote it",
    )


def _columns(kind: type, items: Sequence[Any]) -> dict[str, list[Any]]:
    return {each.name: [_plain(getattr(item, each.name)) for item in items] for each in fields(kind)}


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def _items(kind: type[_Item], columns: Mapping[str, Sequence[Any]]) -> Iterator[_Item]:
    hints = get_type_hints(kind)
    names = [each.name for each in fields(kind)]
    if set(columns) != set(names):
        raise ValueError(f"columns {sorted(set(columns) ^ set(names))} are missing or unknown")
    for row in zip(*(columns[name] for name in names), strict=True):
        yield kind(**{name: _typed(hints[name], value) for name, value in zip(names, row, strict=True)})


def _typed(hint: Any, value: Any) -> Any:
    """A value of the type that a field asks for; where that is a fraction, a whole number is one too."""
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(value)
    if get_origin(hint) is tuple:
        return tuple(_typed(int, each) for each in value)
    if type(value) is not hint and (hint, type(value)) != (float, int):
        raise TypeError(f"{value!r} is no {hint.__name__}")
    return value


def _text(value: Any) -> str:
    return str(_typed(str, value))


def _wrong(memory: MemoryMap) -> Iterator[str]:
    """What in a memory map points nowhere."""
    if [b.id for b in memory.buffers] != list(range(len(memory.buffers))):
        yield "buffers that are not numbered in order"
    sizes = types.MappingProxyType({a.index: a.size_bytes for a in memory.allocations})
    last = max(0, len(memory.kernels) - 1)
    if any(not 0 <= t.starts <= min(t.ends, last) or t.ends > last + 1 for t in memory.transfers):
        yield "copies that end before they start, or behind the last kernel"
    for buffer in memory.buffers:
        if not 0 <= buffer.born <= buffer.dies <= last:
            yield f"buffer {buffer.id} that lives from {buffer.born} to {buffer.dies} of {last}"
        if buffer.allocation not in sizes:
            yield f"buffer {buffer.id} in allocation {buffer.allocation}, which is not there"
        elif not 0 <= buffer.offset_bytes <= sizes[buffer.allocation] - buffer.size_bytes:
            yield f"buffer {buffer.id} that does not lie in its allocation"
