"""Patterns of the messages in which XLA says that memory ran out.

The texts are XLA's and libtpu's own, from 2019 to today. A pattern matches a line that holds its sign; its facts are
figures in the same line. The first pattern that matches a line is taken.
"""

import enum
import re
from dataclasses import dataclass
from typing import TypedDict, Unpack

from jaxckpt.oom.lines import SIZE


class Moment(enum.StrEnum):
    """The moment at which memory ran out."""

    COMPILE = enum.auto()
    """The compiler could not lay the program out: it asked for all that the program needs."""
    RUN = enum.auto()
    """An allocator could not serve one request."""


class Platform(enum.StrEnum):
    """The platform whose memory ran out."""

    GPU = enum.auto()
    TPU = enum.auto()
    CPU = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePattern:
    """One message of a compiler or an allocator.

    Facts are patterns of the line of the sign, with groups named after what they find. Sizes: requested, more (to be
    added to it), exact (the same in bytes), limit, free, largest_free, temp; with "count_" before them plain numbers.
    Words: program, device, space.
    """

    sign: re.Pattern[str]
    facts: tuple[re.Pattern[str], ...] = ()
    moment: Moment | None = Moment.RUN
    platform: Platform | None = None  # if only one prints the message
    likely: Platform | None = None  # to be assumed if nothing else in the text names one
    allocator: str = ""  # if only one prints the message
    space: str = ""  # the memory, if only one is meant
    is_weak: bool = False  # also printed by programs that go on: it counts only without a stronger one


_EXACT = r"(?:\s?\((?:rounded to )?(?P<exact>\d{1,20})(?:\s?bytes|\s?B)?\))?"


class _Known(TypedDict, total=False):
    moment: Moment | None
    platform: Platform
    likely: Platform
    allocator: str
    space: str
    is_weak: bool


def _pattern(sign: str, *facts: str, **known: Unpack[_Known]) -> MessagePattern:
    compiled = (re.compile(fact.replace("SIZE", SIZE).replace("EXACT", _EXACT)) for fact in facts)
    return MessagePattern(sign=re.compile(sign), facts=tuple(compiled), **known)


_MODULE = r"HLO module: (?P<program>[\w.-]*\w)\.?\s"
_DEVICE = r"\((?P<device>0x[0-9a-fx]+_\w+)\)"

PATTERNS = (
    _pattern(
        r"Ran out of memory in memory space \w+",
        r"memory space (?P<space>\w+)\b",
        r"Used (?P<requested>SIZE) of (?P<limit>SIZE)\s",
        _MODULE,
        moment=Moment.COMPILE,
        platform=Platform.TPU,
    ),
    _pattern(
        r"Ran out of memory on HBM",
        r"HLO temporaries \((?P<requested>SIZE)\)",
        r"HLO temporaries \((?P<temp>SIZE)\)",
        r"exceeds available HBM \((?P<limit>SIZE)\)",
        _MODULE,
        moment=Moment.COMPILE,
        platform=Platform.TPU,
        space="hbm",
    ),
    _pattern(
        r"TPU TensorCore Hbm usage",
        r"TensorCore Hbm usage: (?P<requested>SIZE), SparseCore Hbm usage:? (?P<more>SIZE)",
        r"exceeding available bytes: (?P<limit>SIZE)",
        moment=Moment.COMPILE,
        platform=Platform.TPU,
        space="hbm",
    ),
    _pattern(
        r"would exceed memory \(size=",
        r"Allocation \(size=(?P<count_requested>\d{1,20})\) would exceed memory \(size=(?P<count_limit>\d{1,20})\)",
        r"space=(?P<space>\w+)\b",
        moment=Moment.COMPILE,
        platform=Platform.TPU,
        space="vmem",
    ),
    _pattern(
        r"Attempting to reserve",
        r"Attempting to reserve (?P<requested>SIZE)",
        r"There are (?P<free>SIZE) free",
        r"and (?P<largest_free>SIZE) reservable",
        r"loading program '(?P<program>[^'\n]+)'",
        _DEVICE,
        platform=Platform.TPU,
        space="hbm",
    ),
    _pattern(
        r"Error allocating device buffer|Attempting to allocate [^\n]*That was not possible",
        r"Attempting to allocate (?P<requested>SIZE)",
        r"There are (?P<free>SIZE) free",
        r"largest contiguous region of free memory is (?P<largest_free>SIZE)",
        _DEVICE,
        platform=Platform.TPU,
        space="hbm",
    ),
    _pattern(
        r"Failed to allocate [^\n]*(?:pinned host|host memory)",
        r"Failed to allocate a (?P<count_requested>\d{1,20})-byte",
        r"Failed to allocate (?P<requested>SIZE)EXACT of",
        space="host",
    ),
    _pattern(r"ran out of memory trying to instantiate command buffer", platform=Platform.GPU, allocator="driver"),
    _pattern(
        r"Out of memory while trying to allocate", r"trying to allocate (?P<requested>SIZE)EXACT", platform=Platform.GPU
    ),
    _pattern(r"Failed to allocate request for", r"request for (?P<requested>SIZE)EXACT"),
    _pattern(r"Out of memory allocating", r"memory allocating (?P<requested>SIZE)EXACT", likely=Platform.CPU),
    _pattern(
        r"cuMemAllocAsync failed to allocate",
        r"failed to allocate (?P<requested>SIZE)EXACT",
        platform=Platform.GPU,
        allocator="cuda_async",
        is_weak=True,
    ),
    _pattern(
        r"Allocator \([^)\n]*\) ran out of memory trying (?!.*freed_by_count)",
        r"Allocator \((?P<device>[^)\n]*)\)",
        r"to allocate (?P<requested>SIZE)EXACT",
        platform=Platform.GPU,
        allocator="bfc",
        is_weak=True,
    ),
    _pattern(
        r"failed to allocate [^\n]* from device: ",
        r"failed to allocate (?P<requested>SIZE)EXACT",
        platform=Platform.GPU,
        allocator="driver",
        is_weak=True,
    ),
    _pattern(r"LLVM ERROR: out of memory", moment=Moment.COMPILE, platform=Platform.CPU, space="host"),
    _pattern(r"std::bad_alloc", moment=None, platform=Platform.CPU, space="host"),
    _pattern(
        r"(?:RESOURCE_EXHAUSTED|[Rr]esource ?[Ee]xhausted)[^\n]*(?:[Oo]ut of memory|OOM|[Mm]emory|[Aa]llocat|HBM)",
        moment=None,
    ),
    _pattern(r"CUDA_ERROR_OUT_OF_MEMORY", platform=Platform.GPU, allocator="driver", is_weak=True),
)
"""All known messages; the general ones last."""

_WORDS = re.compile(r"memory|alloc|exhaust|hbm|reserve", re.IGNORECASE)
"""Every sign holds one of these words; they are searched first, since logs are long."""


def pattern_of(line: str) -> MessagePattern | None:
    """The pattern of a line that says that memory ran out; None for other lines.

    Example:
      >>> str(pattern_of("RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem.").moment)
      'compile'
    """
    if _WORDS.search(line) is None:
        return None
    return next((pattern for pattern in PATTERNS if pattern.sign.search(line) is not None), None)
