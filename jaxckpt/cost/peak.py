"""Last pass of a replay: the live ranges of what is in the heap of temporaries, and bytes alive at every step.

Arguments and results have memory of their own and are not counted. A kernel may write over a buffer of the same size
and shape that dies there; both have one live range then. Exact for the sizes in the graph and the fusion rules;
padding, workspaces that a compiler picks by itself and changes of order that its scheduler makes are left out. What
lies free between buffers is counted by `heap_bytes`.

Output reuse: a result that takes over no donated argument has memory of its own from the start of the step. XLA puts
temporaries there until the result is written: first fit by decreasing size, each buffer in the youngest allocation that
is large enough and free for its live range. Steps that return gradients gain by it; those that update donated
parameters have next to no such results.

Read after `buffer_liveness`; `replay` asks. Complexity: temporaries times results.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import accumulate

from jaxckpt.cost.buffer_liveness import BufferLiveness
from jaxckpt.cost.loop_liveness import Span

_SMALLEST_BYTES = 2**16
"""Smaller buffers are left out, which bounds the time: they are too few bytes to change a peak. Limits of 1 byte,
64 KiB and 1 MiB predict the same (`python -m benchmarks.constants`)."""


def heap_ranges(buffers: BufferLiveness, *, external: Collection[int], results: Set[int]) -> tuple[Span, ...]:
    """Live ranges of the temporaries that have memory of their own, workspaces included.

    External buffers, arguments and results, have other memory; `results` are those that take over no argument.
    """
    births, size_bytes = buffers.births, buffers.size_bytes
    spans = {buffer: Span(birth, buffers.deaths[buffer], size_bytes[buffer]) for buffer, birth in births.items()}
    temporaries = {buffer: span for buffer, span in spans.items() if buffer not in external}
    with_slots = {**temporaries, **buffers.loops.branch_slots}
    placed = {*external, *placed_in_outputs(with_slots, [spans[result] for result in spans.keys() & results])}
    own = {buffer: span for buffer, span in temporaries.items() if buffer not in placed}
    for buffer, over in _written_over(buffers, own):
        own[over].death = max(own[over].death, own[buffer].death)
        own[buffer] = own[over]
    workspaces = (Span(at, at, workspace_bytes) for at, workspace_bytes in buffers.workspace_bytes.items())
    return (*{id(span): span for span in own.values()}.values(), *buffers.loops.spans(placed), *workspaces)


def live_bytes(ranges: Iterable[Span], length: int) -> tuple[int, ...]:
    """Bytes of temporaries alive at each of so many steps."""
    change_bytes = [0] * (length + 1)
    for span in ranges:
        change_bytes[span.birth] += span.size_bytes
        change_bytes[span.death + 1] -= span.size_bytes
    return tuple(accumulate(change_bytes[:length]))


def _written_over(buffers: BufferLiveness, own: Mapping[int, Span]) -> Iterator[tuple[int, int]]:
    """Buffers that their kernels write over one of the same size and shape that dies there, each with that one.

    In the order of births, so that what a buffer is written over has been written over its own before.
    """
    dying: defaultdict[int, list[int]] = defaultdict(list)
    ranges = {buffer: (span.birth, span.death) for buffer, span in own.items()}
    for buffer, (_, death) in ranges.items():
        dying[death].append(buffer)
    for buffer in sorted(buffers.in_place.keys() & own.keys(), key=lambda each: (ranges[each], each)):
        birth, _ = ranges[buffer]
        candidates, size_bytes = dying.get(birth, []), own[buffer].size_bytes
        fitting = (old for old in candidates if ranges[old][0] < birth and own[old].size_bytes == size_bytes)
        over = next((old for old in fitting if buffers.in_place[buffer] or old not in buffers.indirect), None)
        if over is not None:
            candidates.remove(over)
            yield buffer, over


@dataclass(slots=True)
class _OutputBuffer:
    """The memory of a result, free until the result is written; the live ranges placed in it do not overlap."""

    size_bytes: int
    until: int
    births: list[int] = field(default_factory=list)
    deaths: list[int] = field(default_factory=list)

    def place(self, new: Span) -> bool:
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


def placed_in_outputs(temporaries: Mapping[int, Span], results: Iterable[Span]) -> frozenset[int]:
    """The temporaries that fit in results, and need no memory of their own.

    Example:
      >>> one, other = (Span(birth=i, death=i + 1, size_bytes=2**19) for i in (1, 2))
      >>> sorted(placed_in_outputs({1: one, 2: other}, [Span(birth=8, death=9, size_bytes=2**20)]))
      [1]
    """
    outputs = [
        _OutputBuffer(result.size_bytes, result.birth)
        for result in sorted(results, key=lambda result: (result.size_bytes, -result.birth))
        if result.size_bytes >= _SMALLEST_BYTES
    ]
    if not outputs:
        return frozenset()
    fitting = range(_SMALLEST_BYTES, outputs[-1].size_bytes + 1)
    large = ((buffer, new) for buffer, new in temporaries.items() if new.size_bytes in fitting)
    by_size = sorted(large, key=lambda each: (-each[1].size_bytes, each[1].birth))
    return frozenset(buffer for buffer, new in by_size if any(output.place(new) for output in outputs))
