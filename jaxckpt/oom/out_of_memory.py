"""XLA's message that memory ran out, as data: what was asked, what there was, and which buffers stood in the way.

A log holds more than the message: tracebacks, warnings of earlier compiles, the allocator's own dump, the list of
buffers, often several times. A *sign* is a line that says that memory ran out; signs that ask for the same number of
bytes are one error said again. The first error is read, from each of its signs to the next sign of any; other errors
are counted.

A figure that is not there, or not whole, is None. Read after `oom_buffers`; what follows from it is in `remedies`.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from jaxckpt._errors import OutOfMemoryTextError
from jaxckpt.oom.buffers import OomBuffer, buffers_in
from jaxckpt.oom.figures import Figures, figures_in, pool_in, remat_in
from jaxckpt.oom.lines import bytes_of, clean_lines
from jaxckpt.oom.message_patterns import MessagePattern, Moment, Platform, pattern_of

_ROUNDING = 0.01
_MOST_WORDS = 400
_TARGET = re.compile(r'cannot be compiled for target "([^"\n]+)"')
_TRACES = {
    Platform.GPU: re.compile(r"GPU_\d|_bfc\b|[Cc]uda|CUDA|BufferAssignment OOM"),
    Platform.TPU: re.compile(r"\bTPU\b|_HBM\d|\bhbm\b"),
    Platform.CPU: re.compile(r"TFRT_CPU|cpu_client"),
}


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
    figures: Figures = field(default_factory=Figures)
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
        return self.requested_bytes if self.moment is Moment.COMPILE else self.figures.total_bytes


def read_out_of_memory(text: str) -> OutOfMemory:
    """Reads the first message that memory ran out.

    Args:
      text: The message, or a log with it somewhere; noise, colours, line ends of any kind and a cut end do no harm.

    Raises:
      OutOfMemoryTextError: There is no such message.

    Example:
      >>> data = read_out_of_memory("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 16.00GiB.")
      >>> data.requested_bytes, str(data.platform), data.limit_bytes
      (17179869184, 'gpu', None)
    """
    lines = clean_lines(text)
    signs = [
        _Sign(at=at, pattern=pattern, facts=_facts(pattern, line))
        for at, line in enumerate(lines)
        if (pattern := pattern_of(line))
    ]
    errors = _errors(signs)
    if not errors:
        raise _no_message(lines)
    strong = [error for error in errors if not all(sign.pattern.is_weak for sign in error)]
    return _read(lines, signs, (strong or errors)[0], others=max(0, len(strong) - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sign:
    """A line that says that memory ran out: its position, how it says so, and what it says beside."""

    at: int
    pattern: MessagePattern
    facts: dict[str, Any]

    @property
    def requested_bytes(self) -> int | None:
        size: int | None = self.facts.get("requested_bytes")
        return size


_SIZES = ("requested", "more", "limit", "free", "largest_free", "temp")


def _facts(message: MessagePattern, line: str) -> dict[str, Any]:
    """What a message pattern finds in its line, by fields of `OutOfMemory` and `Figures`."""
    groups: dict[str, str] = {}
    for pattern in message.facts:
        if (match := pattern.search(line)) is not None:
            groups |= {name: value for name, value in match.groupdict().items() if value is not None}
    sizes = {name: bytes_of(groups.pop(name)) for name in _SIZES if name in groups}
    sizes |= {name: int(groups.pop(f"count_{name}")) for name in _SIZES if f"count_{name}" in groups}
    if "exact" in groups:
        sizes["requested"] = int(groups.pop("exact"))
    more, requested = sizes.pop("more", None), sizes.get("requested")
    if more is not None and requested is not None:
        sizes["requested"] = requested + more
    return {f"{name}_bytes": size for name, size in sizes.items()} | groups


def _errors(signs: Sequence[_Sign]) -> list[list[_Sign]]:
    """Signs of one error together, errors in the order of their first signs."""
    errors: list[list[_Sign]] = []
    for sign in signs:
        same = [error for error in errors if _asks_the_same(error, sign)]
        if same:
            same[-1].append(sign)
        else:
            errors.append([sign])
    return errors


def _asks_the_same(error: Sequence[_Sign], sign: _Sign) -> bool:
    """Whether a sign may belong to an error: one of the two names no size, or they name the same."""
    asked = [size for each in error if (size := each.requested_bytes) is not None]
    if sign.requested_bytes is None or not asked:
        return True
    return any(abs(size - sign.requested_bytes) <= _ROUNDING * size + 256 for size in asked)


def _read(lines: Sequence[str], signs: Sequence[_Sign], error: Sequence[_Sign], *, others: int) -> OutOfMemory:
    stretches = list(_stretches(lines, signs, error))
    own = [line for stretch in stretches for line in stretch]
    said = sorted(error, key=lambda sign: sign.pattern.is_weak)
    facts = _merged(said)
    figures, unread = figures_in(own)
    if "temp_bytes" in facts:
        figures.setdefault("temp_bytes", facts.pop("temp_bytes"))
    figures |= remat_in(lines[: error[0].at])
    device = facts.get("device", "")
    refused = _refused(signs, until=error[-1].at)
    return OutOfMemory(
        **pool_in(own) | facts,
        message=lines[said[0].at].strip()[:_MOST_WORDS],
        moment=said[0].pattern.moment,
        platform=_platform(said, own) or (Platform.GPU if refused is not None else None),
        allocator=_first(sign.pattern.allocator for sign in said) or ("bfc" if device.endswith("_bfc") else ""),
        target=_first(
            match[1] for line in lines[max(0, said[0].at - 3) : said[0].at + 1] if (match := _TARGET.search(line))
        ),
        refused_bytes=refused,
        figures=Figures(**figures),
        buffers=max(map(buffers_in, stretches), key=lambda found: sum(len(buffer.lines) for buffer in found)),
        unread=unread,
        repeats=max(0, sum(not sign.pattern.is_weak for sign in error) - 1),
        others=others,
    )


def _stretches(lines: Sequence[str], signs: Sequence[_Sign], error: Sequence[_Sign]) -> Iterator[Sequence[str]]:
    """For each sign of an error the lines from there to the next sign of any."""
    ends = {sign.at: after.at for sign, after in pairwise(signs)}
    for sign in error:
        yield lines[sign.at : ends.get(sign.at, len(lines))]


def _merged(said: Sequence[_Sign]) -> dict[str, Any]:
    """The facts of all signs of one error, those of the strongest first."""
    facts: dict[str, Any] = {"space": _first(sign.pattern.space for sign in said)}
    for sign in reversed(said):
        facts |= {name: value for name, value in sign.facts.items() if value is not None}
    return facts


def _platform(said: Sequence[_Sign], lines: Sequence[str]) -> Platform | None:
    certain = next((sign.pattern.platform for sign in said if sign.pattern.platform), None)
    if certain is not None:
        return certain
    shown = (platform for line in lines for platform, trace in _TRACES.items() if trace.search(line))
    return next(shown, said[0].pattern.likely)


def _refused(signs: Sequence[_Sign], *, until: int) -> int | None:
    """The smallest request that the driver refused up to a line."""
    driver = (sign for sign in signs if sign.pattern.allocator == "driver" and sign.at <= until)
    return min((size for sign in driver if (size := sign.requested_bytes) is not None), default=None)


def _first(texts: Iterable[str]) -> str:
    return next(filter(None, texts), "")


def _no_message(lines: Sequence[str]) -> OutOfMemoryTextError:
    exhausted = next((line.strip() for line in lines if "RESOURCE_EXHAUSTED" in line), None)
    got = f"{exhausted[:200]!r}, which says nothing of memory" if exhausted else f"{len(lines)} lines without one"
    return OutOfMemoryTextError(
        "this text holds no message of XLA that memory ran out.",
        got=got,
        needed='lines such as "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1234 bytes."',
        advice="the whole standard error of the run that failed, from its start",
    )
