"""XLA's message that memory ran out, as data: what was asked, what there was, and which buffers stood in the way.

A log holds more than the message: traceback, warnings of earlier compiles, the allocator's own dump before the error and
the list of buffers behind it, often several times. A *sign* is a line that says that memory ran out; signs that ask for
the same number of bytes are one error said again. The first error is read, with all lines between it and the next
one, and with those before it; other errors are counted.

A figure that is not there, or not whole, is None. Read after `oom_buffers`; what follows from it is in `remedies`.
"""

import enum
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from jaxckpt._errors import OutOfMemoryTextError
from jaxckpt.hlo.oom_buffers import OomBuffer, buffers_in
from jaxckpt.hlo.oom_figures import Figures, figures_in
from jaxckpt.hlo.oom_lines import SIZE, bytes_of, clean_lines

_ROUNDING = 0.01


class Moment(enum.StrEnum):
    """When memory ran out."""

    COMPILE = enum.auto()
    """The compiler could not lay the program out: it asked for all that the program needs."""
    RUN = enum.auto()
    """An allocator could not serve one request."""


class Platform(enum.StrEnum):
    """Whose memory ran out."""

    GPU = enum.auto()
    TPU = enum.auto()
    CPU = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """What a message says; None and "" are what it does not say.

    Attributes:
      message: The line with the error.
      moment: When it happened.
      platform: Where.
      space: The memory that ran out: "hbm", "vmem" (on a TPU's chip), "host".
      device: XLA's name of the allocator or the memory ("GPU_0_bfc", "0x0x0_HBM0").
      allocator: What serves requests: "bfc", "cuda_async", "platform", "driver".
      program: The module ("jit_step").
      target: The machine that jaxckpt compiled for.
      requested_bytes: What was asked: one allocation when running, all of the program when compiling. Like all figures
        rounded as XLA printed it, exact where it printed bytes.
      limit_bytes: The most that allocator or compiler may give out, be it free or not.
      free_bytes: What was free.
      largest_free_bytes: The longest free stretch.
      in_use_bytes: What was given out before.
      device_bytes: All memory of the device, as its driver says.
      refused_bytes: The smallest request that the driver itself refused: others hold its memory.
      figures: What the program takes, by use.
      buffers: As listed, in XLA's order: all of one moment (GPU) or the largest of all (TPU).
      unread: Figures that stand there and could not be read, in words.
      repeats: How often the same error is said again.
      others: How many other errors of this kind the text holds.
    """

    message: str
    moment: Moment | None = None
    platform: Platform | None = None
    space: str = ""
    device: str = ""
    allocator: str = ""
    program: str = ""
    target: str = ""
    requested_bytes: int | None = None
    limit_bytes: int | None = None
    free_bytes: int | None = None
    largest_free_bytes: int | None = None
    in_use_bytes: int | None = None
    device_bytes: int | None = None
    refused_bytes: int | None = None
    figures: Figures = Figures()
    buffers: tuple[OomBuffer, ...] = ()
    unread: tuple[str, ...] = ()
    repeats: int = 0
    others: int = 0

    @property
    def available_bytes(self) -> int | None:
        """What could be had at best when it was asked for, in however many pieces."""
        if self.free_bytes is not None or self.limit_bytes is None:
            return self.free_bytes
        if self.moment is Moment.COMPILE:
            return self.limit_bytes
        return None if self.in_use_bytes is None else max(0, self.limit_bytes - self.in_use_bytes)

    @property
    def shortfall_bytes(self) -> int | None:
        """What was asked beyond what could be had; negative where it lacked in no total, only in one piece."""
        if self.requested_bytes is None or self.available_bytes is None:
            return None
        return self.requested_bytes - self.available_bytes

    @property
    def need_bytes(self) -> int | None:
        """What the whole program takes, where the message says so."""
        if self.figures.total_bytes is not None:
            return self.figures.total_bytes
        return self.requested_bytes if self.moment is Moment.COMPILE and self.space in ("", "hbm") else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """One way in which XLA says that memory ran out.

    Attributes:
      sign: What its line holds.
      facts: Patterns with groups named after fields of `OutOfMemory` (without "_bytes" where they are sizes).
      is_weak: Whether it may also be said when all goes on well; counts only where nothing stronger is said.
    """

    sign: re.Pattern[str]
    facts: tuple[re.Pattern[str], ...] = ()
    moment: Moment | None = None
    platform: Platform | None = None
    allocator: str = ""
    space: str = ""
    is_weak: bool = False


_EXACT = r"(?:\s?\((?:rounded to )?(?P<exact>\d+)(?:\s?bytes|\s?B)?\))?"


def _form(
    sign: str,
    *facts: str,
    moment: Moment | None = Moment.RUN,
    platform: Platform | None = None,
    allocator: str = "",
    space: str = "",
    is_weak: bool = False,
) -> _Form:
    patterns = tuple(re.compile(fact.replace("SIZE", SIZE).replace("EXACT", _EXACT)) for fact in facts)
    return _Form(re.compile(sign), patterns, moment, platform, allocator, space, is_weak)
