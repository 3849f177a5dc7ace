"""Output reuse: temporaries placed in the memory of results that are not written yet.

A result that takes over no donated argument has memory of its own from the start of the step. XLA puts temporaries
there until the result is written: first fit by decreasing size, each buffer in the youngest allocation that is large
enough and free for its live range. Steps that return gradients gain by it; those that update donated parameters have
next to no such results.

Read after `rates`. Complexity: temporaries times results.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

_SMALLEST_BYTES = 2**16
"""Smaller buffers are left out, which bounds the time: they are too few bytes to change a peak. Limits of 1 byte,
64 KiB and 1 MiB predict the same (`python -m benchmarks.constants`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferLiveRange:
    """A buffer, from the step that writes it to the last one that reads it."""

    buffer: int
    size_bytes: int
    birth: int
    death: int


@dataclass(slots=True)
class _OutputBuffer:
    """The memory of a result, free until the result is written; the live ranges placed in it do not overlap."""

    size_bytes: int
    until: int
    births: list[int] = field(default_factory=list)
    deaths: list[int] = field(default_factory=list)

    def place(self, new: BufferLiveRange) -> bool:
        """Places a temporary; True if it fits."""
        if new.size_bytes > self.size_bytes or new.death >= self.until:
            return False
        at = bisect_left(self.births, new.birth)
        if at and self.deaths[at - 1] >= new.birth:
            return False
        if at < len(self.births) and self.births[at] <= new.death:
            return False
        self.births.insert(at, new.birth)
        self.deaths.insert(at, new.death)
        return True


def placed_in_outputs(temporaries: Iterable[BufferLiveRange], results: Sequence[BufferLiveRange]) -> frozenset[int]:
    """The temporaries that fit in results, and need no memory of their own.

    Example:
      >>> result = BufferLiveRange(buffer=9, size_bytes=2**20, birth=8, death=9)
      >>> one, other = (
      ...     BufferLiveRange(buffer=i, size_bytes=2**19, birth=i, death=i + 1) for i in (1, 2)
      ... )
      >>> sorted(placed_in_outputs([one, other], [result]))
      [1]
    """
    outputs = [
        _OutputBuffer(result.size_bytes, result.birth)
        for result in sorted(results, key=lambda result: (result.size_bytes, -result.birth))
        if result.size_bytes >= _SMALLEST_BYTES
    ]
    if not outputs:
        return frozenset()
    large = (new for new in temporaries if _SMALLEST_BYTES <= new.size_bytes <= outputs[-1].size_bytes)
    by_size = sorted(large, key=lambda new: (-new.size_bytes, new.birth))
    return frozenset(new.buffer for new in by_size if any(output.place(new) for output in outputs))
