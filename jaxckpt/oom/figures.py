"""Tables of sums in XLA's message: bytes of the program by use, of the allocator, of XLA's own rematerialisation.

Four tables, each under its own heading: the allocator's "Stats" and "BufferAssignment stats" (GPU), "Total hbm usage"
and "Program hbm requirement" (TPU). A row counts only under its heading, since "reserved" is in two tables with two
meanings. An empty line ends a table.

Read after `lines`.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from jaxckpt.oom.lines import SIZE, bytes_of, leading_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Bytes that a program takes, by use; None where the message does not say.

    Attributes:
      remat_target_bytes: The target of XLA's own rematerialisation; negative where arguments and results take more
        than the memory.
    """

    argument_bytes: int | None = None  # its arguments
    output_bytes: int | None = None  # its results, those included that take over an argument's memory
    alias_bytes: int | None = None  # results that take over an argument's memory
    constant_bytes: int | None = None  # arrays closed over
    temp_bytes: int | None = None  # everything in between
    unpadded_bytes: int | None = None  # of the temporaries, what is no padding (TPU)
    fragmentation_bytes: int | None = None  # of the temporaries, holes
    reserved_bytes: int | None = None  # kept by the system; in `total_bytes`
    program_bytes: int | None = None  # temporaries, constants, code (TPU)
    total_bytes: int | None = None  # all of it
    remat_target_bytes: int | None = None
    remat_reached_bytes: int | None = None  # the bytes that the pass reached


_HEADINGS = {
    "stats": re.compile(r"^\s*Stats:\s*$"),
    "assignment": re.compile(r"BufferAssignment stats:"),
    "total": re.compile(r"Total \w+ usage >= "),
    "program": re.compile(r"Program \w+ requirement "),
    "buffers": re.compile(r"^\s*(?:Peak buffers:|Largest program )"),
}
_VALUE = r"\s+(?P<value>\S[^\n]*)"
_COUNT = r"(?P<count>\d{1,20})"
_POOL_VALUE = rf" +(?:{_COUNT}|(?P<value>{SIZE}[^\n]*))\s*\n"
_ROWS: tuple[tuple[str, str, str], ...] = (
    ("stats", rf"^\s*Limit:{_POOL_VALUE}", "limit_bytes"),
    ("stats", rf"^\s*InUse:{_POOL_VALUE}", "in_use_bytes"),
    ("stats", rf"^\s*LargestFreeBlock:{_POOL_VALUE}", "largest_free_bytes"),
    ("", rf"memory_limit_: {_COUNT}\s", "limit_bytes"),
    ("", rf"Free memory/Total memory: {_COUNT}/\d{{1,20}}\s", "free_bytes"),
    ("", rf"Free memory/Total memory: \d{{1,20}}/{_COUNT}\s", "device_bytes"),
    ("assignment", rf"^\s*parameter allocation:{_VALUE}", "argument_bytes"),
    ("assignment", rf"^\s*constant allocation:{_VALUE}", "constant_bytes"),
    ("assignment", rf"^\s*maybe_live_out allocation:{_VALUE}", "output_bytes"),
    ("assignment", rf"^\s*preallocated temp allocation:{_VALUE}", "temp_bytes"),
    ("assignment", rf"^\s*total allocation:{_VALUE}", "total_bytes"),
    ("assignment", rf"^\s*total fragmentation:{_VALUE}", "fragmentation_bytes"),
    ("total", r"Total \w+ usage >= (?P<value>[^\n]*):", "total_bytes"),
    ("total", rf"^\s*reserved{_VALUE}", "reserved_bytes"),
    ("total", rf"^\s*program{_VALUE}", "program_bytes"),
    ("total", rf"^\s*arguments{_VALUE}", "argument_bytes"),
    ("", r"^\s*Output size (?P<value>[^;.\n]*(?:\.\d[^;.\n]*)?)", "output_bytes"),
    ("", r"Output size [^;\n]*; shares (?P<value>.*?) with arguments", "alias_bytes"),
    ("program", rf"^\s*HLO temp{_VALUE}", "temp_bytes"),
    ("program", r"^\s*HLO temp .*Unpadded \((?P<value>[^)\n]*)\)", "unpadded_bytes"),
    ("program", r"^\s*HLO temp .*fragmentation \((?P<value>[^)\n]*)\)", "fragmentation_bytes"),
)
"""Rows of tables: the heading ("" where the row needs none), the text, and the field of `Figures` or `OutOfMemory`."""
_UNKNOWN_AS_ZERO = ("limit_bytes", "largest_free_bytes", "device_bytes")
"""Figures that an allocator prints as 0 if it does not know them."""
_REMAT = re.compile(
    rf"Can't reduce memory use below (?P<target>{SIZE})(?: \((?P<exact_target>-?\d+) bytes\))? by rematerialization;"
    rf" only reduced to (?P<reached>{SIZE})(?: \((?P<exact_reached>\d{{1,20}}) bytes\))?"
)


def figures_in(lines: Iterable[str]) -> tuple[dict[str, int], tuple[str, ...]]:
    """First figure of each field of `Figures` and of the allocator's fields of `OutOfMemory`.

    And, in words, the fields whose size could not be read ("argument: unknown size").
    """
    found: dict[str, int] = {}
    unread: dict[str, str] = {}
    for name, match in _matches(lines):
        size = _size(match)
        if size is None:
            unread.setdefault(name, f"{name.removesuffix('_bytes')}: {match['value'].strip() or 'cut off'}")
        elif size or name not in _UNKNOWN_AS_ZERO:
            found.setdefault(name, size)
    return found, tuple(words for name, words in unread.items() if name not in found)


def _matches(lines: Iterable[str]) -> Iterator[tuple[str, re.Match[str]]]:
    """The rows in lines, each with the field that it is for."""
    for line, heading in _with_headings(lines):
        for needed, pattern, name in _ROWS:
            if needed in ("", heading) and (match := re.search(pattern, line)):
                yield name, match


def _size(match: re.Match[str]) -> int | None:
    """A number of bytes, or a size with its unit."""
    count = match.groupdict().get("count")
    return leading_size(match["value"].strip()) if count is None else int(count)


def _with_headings(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Lines with the heading of their table, "" outside of tables."""
    heading = ""
    for line in lines:
        unchanged = heading if line.strip() else ""
        heading = next((name for name, pattern in _HEADINGS.items() if pattern.search(line)), unchanged)
        yield line, heading


def remat_in(lines: Sequence[str]) -> dict[str, int]:
    """Target and result of XLA's own rematerialisation, by fields of `Figures`: the last try in these lines."""
    match = next((match for line in reversed(lines) if (match := _REMAT.search(line))), None)
    found: dict[str, int] = {}
    if match is None:
        return found
    for name in ("target", "reached"):
        exact = match[f"exact_{name}"]
        size = int(exact) if exact else bytes_of(match[name])
        if size is not None:
            found[f"remat_{name}_bytes"] = size
    return found
