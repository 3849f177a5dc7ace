"""Temporaries that stand in results: a result that takes over no argument has its memory from the start of the step.

Until it is written that memory is free, and XLA puts temporaries there: it goes through all buffers, the largest first,
and gives each the youngest allocation that is large enough and free for as long as it lives. Steps that return
gradients gain by it; those that update donated parameters have next to no such results.

Read after `rates`. Complexity: temporaries times results.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

_SMALLEST_BYTES = 2**16
"""Smaller buffers change nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferLiveRange:
    """A buffer, and the steps from the one that writes it to the last one that reads it."""

    buffer: int
    size_bytes: int
    birth: int
    death: int


@dataclass(slots=True)
class _Room:
    """The memory of a result, free until it is written; lives in it do not meet."""

    size_bytes: int
    until: int
    births: list[int] = field(default_factory=list)
    deaths: list[int] = field(default_factory=list)

    def take(self, life: BufferLiveRange) -> bool:
        """Lets a temporary in, where it fits."""
        if life.size_bytes > self.size_bytes or life.death >= self.until:
            return False
        at = bisect_left(self.births, life.birth)
        if at and self.deaths[at - 1] >= life.birth:
            return False
        if at < len(self.births) and self.births[at] <= life.death:
            return False
        self.births.insert(at, life.birth)
        self.deaths.insert(at, life.death)
        return True


def placed_in_outputs(temporaries: Iterable[BufferLiveRange], results: Sequence[BufferLiveRange]) -> frozenset[int]:
    """The temporaries that need no memory of their own.

    Args:
      temporaries: All of them.
      results: Those that take over no argument.

    Returns:
      Ids of buffers.

    Example:
      >>> result = Life(buffer=9, size_bytes=2**20, birth=8, death=9)
      >>> one, other = (Life(buffer=i, size_bytes=2**19, birth=i, death=i + 1) for i in (1, 2))
      >>> sorted(guests([one, other], [result]))
      [1]
    """
    rooms = [
        _Room(result.size_bytes, result.birth)
        for result in sorted(results, key=lambda result: (result.size_bytes, -result.birth))
        if result.size_bytes >= _SMALLEST_BYTES
    ]
    if not rooms:
        return frozenset()
    large = (life for life in temporaries if _SMALLEST_BYTES <= life.size_bytes <= rooms[-1].size_bytes)
    by_size = sorted(large, key=lambda life: (-life.size_bytes, life.birth))
    return frozenset(life.buffer for life in by_size if any(room.take(life) for room in rooms))
