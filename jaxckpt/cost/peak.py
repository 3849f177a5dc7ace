"""Last pass of a replay: bytes alive at every step, from the live ranges of its buffers; their maximum is the peak.

Arguments and results have memory of their own and are not counted. A kernel may write over a buffer of the same size
and shape that dies there. Exact for the sizes in the graph and the fusion rules; padding, fragmentation, workspaces
that a compiler picks by itself and changes of order that its scheduler makes are left out.

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


def live_bytes(
    buffers: BufferLiveness, length: int, *, external: Collection[int], results: Set[int]
) -> tuple[int, ...]:
    """Bytes of temporaries alive at each of so many steps, workspaces included.

    External buffers, arguments and results, have memory of their own; `results` are those that take over no argument.
    """
    births, size_bytes = buffers.births, buffers.size_bytes
    spans = {buffer: Span(birth, buffers.deaths[buffer], size_bytes[buffer]) for buffer, birth in births.items()}
    temporaries = {buffer: span for buffer, span in spans.items() if buffer not in external}
    with_slots = {**temporaries, **buffers.loops.branch_slots}
    placed = {*external, *placed_in_outputs(with_slots, [spans[result] for result in spans.keys() & results])}
    own = {buffer: span for buffer, span in temporaries.items() if buffer not in placed}
    change_bytes = [0] * (length + 1)
    for span in (*own.values(), *buffers.loops.spans(placed)):
        change_bytes[span.birth] += span.size_bytes
        change_bytes[span.death + 1] -= span.size_bytes
    alive_bytes = list(accumulate(change_bytes[:length]))
    for buffer in _written_over(buffers, own, buffers.in_place.keys() - placed):
        alive_bytes[births[buffer]] -= size_bytes[buffer]
    for at, workspace_bytes in buffers.workspace_bytes.items():
        alive_bytes[at] += workspace_bytes
    return tuple(alive_bytes)


def _written_over(buffers: BufferLiveness, own: Mapping[int, Span], in_place: Collection[int]) -> Iterator[int]:
    """Buffers that their kernels write over one of the same size and shape that dies there."""
    dying: defaultdict[int, list[int]] = defaultdict(list)
    for buffer, span in own.items():
        dying[span.death].append(buffer)
    for buffer in in_place:
        new, candidates = own[buffer], dying.get(own[buffer].birth, [])
        fitting = (old for old in candidates if own[old].birth < new.birth and own[old].size_bytes == new.size_bytes)
        over = next((old for old in fitting if buffers.in_place[buffer] or old not in buffers.indirect), None)
        if over is not None:
            candidates.remove(over)
            yield buffer


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
