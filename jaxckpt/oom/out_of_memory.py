"""XLA's message that memory ran out, as data: bytes requested, bytes available, and the listed buffers.

A log holds more than the message: tracebacks, warnings of earlier compiles, the allocator's own dump, the list of
buffers, often several times. A *sign* is a line that says that memory ran out; signs that request the same number of
bytes are repeats of one error. The first error is read, from each of its signs to the next sign of any error; other
errors are counted. A figure that is missing or cut off is None. Read after `buffers`; `remedies` draws conclusions.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

from jaxckpt._errors import OutOfMemoryTextError
from jaxckpt.oom.buffers import OomBuffer, buffers_in
from jaxckpt.oom.figures import Figures, figures_in, remat_in
from jaxckpt.oom.lines import bytes_of, clean_lines
from jaxckpt.oom.message_patterns import MessagePattern, Moment, Platform, pattern_of

_ROUNDING = 0.01
_MOST_CHARACTERS = 400
_TARGET = re.compile(r'cannot be compiled for target "([^"\n]+)"')
_TRACES = {
    Platform.GPU: re.compile(r"GPU_\d|_bfc\b|[Cc]uda|CUDA|BufferAssignment OOM"),
    Platform.TPU: re.compile(r"\bTPU\b|_HBM\d|\bhbm\b"),
    Platform.CPU: re.compile(r"TFRT_CPU|cpu_client"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """Content of a message; None and "" where the message does not say.

    Attributes:
      requested_bytes: Bytes requested: one allocation when running, all of the program when compiling. Like all figures
        rounded as XLA printed them, exact where XLA printed bytes.
      buffers: As listed, in XLA's order: all of one moment (GPU) or the largest of all (TPU).
    """

    message: str  # the line with the error
    moment: Moment | None = None  # when memory ran out
    platform: Platform | None = None  # of the device
    space: str = ""  # the memory that ran out: "hbm", "vmem" (on a TPU's chip), "host"
    device: str = ""  # XLA's name of the allocator or the memory ("GPU_0_bfc", "0x0x0_HBM0")
    allocator: str = ""  # what serves requests: "bfc", "cuda_async", "platform", "driver"
    program: str = ""  # the module ("jit_step")
    target: str = ""  # the machine that jaxckpt compiled for
    requested_bytes: int | None = None
    limit_bytes: int | None = None  # the most that allocator or compiler may give out, free or not
    free_bytes: int | None = None  # free bytes
    largest_free_bytes: int | None = None  # the longest free stretch
    in_use_bytes: int | None = None  # bytes given out before
    device_bytes: int | None = None  # all memory of the device, as its driver says
    refused_bytes: int | None = None  # the smallest request that the driver itself refused: others hold its memory
    figures: Figures = field(default_factory=Figures)  # bytes of the program, by use
    buffers: tuple[OomBuffer, ...] = ()
    unread: tuple[str, ...] = ()  # figures in the text that could not be read, in words
    repeats: int = 0  # how often the text repeats the same error
    others: int = 0  # how many other errors of this kind the text holds

    @property
    def available_bytes(self) -> int | None:
        """Bytes available at the request, in however many pieces."""
        if self.free_bytes is not None or self.limit_bytes is None:
            return self.free_bytes
        if self.moment is Moment.COMPILE:
            return self.limit_bytes
        return None if self.in_use_bytes is None else max(0, self.limit_bytes - self.in_use_bytes)

    @property
    def shortfall_bytes(self) -> int | None:
        """Bytes requested beyond the available ones; negative where only a piece that is long enough was missing."""
        if self.requested_bytes is None or self.available_bytes is None:
            return None
        return self.requested_bytes - self.available_bytes

    @property
    def need_bytes(self) -> int | None:
        """Bytes of the full program, where the message says so."""
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
    """A line that says that memory ran out: its position, its pattern and its facts."""

    at: int
    pattern: MessagePattern
    facts: dict[str, Any]

    @property
    def requested_bytes(self) -> int | None:
        size: int | None = self.facts.get("requested_bytes")
        return size


_SIZES = ("requested", "more", "limit", "free", "largest_free", "temp")


def _facts(message: MessagePattern, line: str) -> dict[str, Any]:
    """Facts that a message pattern finds in its line, by fields of `OutOfMemory` and `Figures`."""
    groups = _named_groups(message.facts, line)
    sizes = {name: bytes_of(groups.pop(name)) for name in _SIZES if name in groups}
    sizes |= {name: int(groups.pop(f"count_{name}")) for name in _SIZES if f"count_{name}" in groups}
    if "exact" in groups:
        sizes["requested"] = int(groups.pop("exact"))
    more, requested = sizes.pop("more", None), sizes.get("requested")
    if more is not None and requested is not None:
        sizes["requested"] = requested + more
    return {f"{name}_bytes": size for name, size in sizes.items()} | groups


def _named_groups(patterns: Iterable[re.Pattern[str]], line: str) -> dict[str, str]:
    matches = filter(None, (pattern.search(line) for pattern in patterns))
    return {name: value for match in matches for name, value in match.groupdict().items() if value is not None}


def _errors(signs: Sequence[_Sign]) -> list[list[_Sign]]:
    """Signs of one error together, errors in the order of their first signs."""
    errors: list[list[_Sign]] = []
    for sign in signs:
        same = [error for error in errors if _may_be_repeated(error, sign)]
        if same:
            same[-1].append(sign)
        else:
            errors.append([sign])
    return errors


def _may_be_repeated(error: Sequence[_Sign], sign: _Sign) -> bool:
    """True if a sign may repeat an error: one of the two names no size, or both name the same size."""
    sizes = [size for each in error if (size := each.requested_bytes) is not None]
    if sign.requested_bytes is None or not sizes:
        return True
    return any(abs(size - sign.requested_bytes) <= _ROUNDING * size + 256 for size in sizes)


def _read(lines: Sequence[str], signs: Sequence[_Sign], error: Sequence[_Sign], *, others: int) -> OutOfMemory:
    sections = list(_sections(lines, signs, error))
    own = [line for section in sections for line in section]
    by_strength = sorted(error, key=lambda sign: sign.pattern.is_weak)
    strongest = by_strength[0]
    figures, unread = figures_in(own)
    facts = figures | _merged(by_strength) | remat_in(lines[: error[0].at])
    if "temp_bytes" in figures:  # the program's table is more exact than the line of the error
        facts["temp_bytes"] = figures["temp_bytes"]
    of_program = {each.name: facts.pop(each.name) for each in fields(Figures) if each.name in facts}
    refused = _refused(signs, until=error[-1].at)
    return OutOfMemory(
        **facts,
        message=lines[strongest.at].strip()[:_MOST_CHARACTERS],
        moment=strongest.pattern.moment,
        platform=_platform(by_strength, own, has_refused=refused is not None),
        allocator=_allocator(by_strength, facts.get("device", "")),
        target=_target(lines[max(0, strongest.at - 3) : strongest.at + 1]),
        refused_bytes=refused,
        figures=Figures(**of_program),
        buffers=max(map(buffers_in, sections), key=lambda found: sum(len(buffer.lines) for buffer in found)),
        unread=unread,
        repeats=max(0, sum(not sign.pattern.is_weak for sign in error) - 1),
        others=others,
    )


def _target(lines: Sequence[str]) -> str:
    return _first(match[1] for line in lines if (match := _TARGET.search(line)))


def _sections(lines: Sequence[str], signs: Sequence[_Sign], error: Sequence[_Sign]) -> Iterator[Sequence[str]]:
    """For each sign of an error the lines from there to the next sign of any."""
    ends = {sign.at: after.at for sign, after in pairwise(signs)}
    for sign in error:
        yield lines[sign.at : ends.get(sign.at, len(lines))]


def _merged(signs: Sequence[_Sign]) -> dict[str, Any]:
    """The facts of all signs of one error, those of the strongest first."""
    facts: dict[str, Any] = {"space": _first(sign.pattern.space for sign in signs)}
    for sign in reversed(signs):
        facts |= {name: value for name, value in sign.facts.items() if value is not None}
    return facts


def _allocator(signs: Sequence[_Sign], device: str) -> str:
    return _first(sign.pattern.allocator for sign in signs) or ("bfc" if device.endswith("_bfc") else "")


def _platform(signs: Sequence[_Sign], lines: Sequence[str], *, has_refused: bool) -> Platform | None:
    """The platform that a sign or a trace in the lines names; a GPU if its driver has refused a request."""
    certain = next((sign.pattern.platform for sign in signs if sign.pattern.platform), None)
    if certain is not None:
        return certain
    traces = (platform for line in lines for platform, trace in _TRACES.items() if trace.search(line))
    return next(traces, signs[0].pattern.likely) or (Platform.GPU if has_refused else None)


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
        "this text holds no out-of-memory message of XLA.",
        got=got,
        needed='lines such as "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1234 bytes."',
        advice="the whole standard error of the run that failed, from its start",
    )
