"""Bytes that XLA allocates for temporaries, from their live ranges.

A buffer has one address for all its life, so that some bytes stay free between others, and the heap is larger than the
peak of live bytes. XLA's `GlobalDecreasingSizeBestFitHeap` puts one buffer after the other into the smallest gap that
is free for its life: in the order of decreasing size, and again in the order of decreasing life. The smaller heap
counts. XLA places buffers of equal size and life in the order of numbers that its schedule does not show: there its
heap may be another one. `tests/cost/test_heap.py` compares both.

Read after `peak`; `Replay.heap_bytes` asks.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jaxckpt.cost.loop_liveness import Span

_Integers = NDArray[np.int64]

_SMALLEST_SHARE = 2**-12
"""Of the peak: smaller buffers are not given addresses, which bounds the time. They fit into gaps between others, or
add what they have to the peak (`python -m benchmarks.constants` compares other shares)."""


def heap_bytes(ranges: Sequence[Span], peak_bytes: int) -> int:
    """The heap of some temporaries, of which at most `peak_bytes` are alive at once.

    Complexity: the square of the number of buffers, in vectorised operations.

    Example:
      >>> heap_bytes([Span(0, 1, 2), Span(1, 4, 1), Span(0, 0, 3), Span(3, 3, 3)], peak_bytes=5)
      6
    """
    smallest_bytes = max(1, _SMALLEST_SHARE * peak_bytes)
    large = [(s.birth, s.death, s.size_bytes) for s in ranges if s.size_bytes >= smallest_bytes]
    if not large:
        return peak_bytes
    births, deaths, sizes = np.array(large).T
    lives = births - deaths
    by_size = _in_order(births, deaths, sizes, np.lexsort((lives, -sizes)))
    if by_size <= peak_bytes:
        return peak_bytes
    return max(peak_bytes, min(by_size, _in_order(births, deaths, sizes, np.lexsort((-sizes, lives)))))


def _in_order(births: _Integers, deaths: _Integers, sizes: _Integers, order: _Integers) -> int:
    """The heap if each buffer is put, in an order, into the smallest gap that is large enough, else on top."""
    births, deaths, sizes = births[order], deaths[order], sizes[order]
    starts, ends = np.zeros_like(sizes), np.zeros_like(sizes)
    for k, size_bytes in enumerate(sizes):
        alive = np.flatnonzero((births[:k] <= deaths[k]) & (deaths[:k] >= births[k]))
        by_address = alive[np.argsort(starts[alive])]
        tops = np.maximum.accumulate(np.append(0, ends[by_address]))
        gaps = starts[by_address] - tops[:-1]
        fitting = np.flatnonzero(gaps >= size_bytes)
        starts[k] = tops[fitting[np.argmin(gaps[fitting])]] if fitting.size else tops[-1]
        ends[k] = starts[k] + size_bytes
    return int(ends.max())
