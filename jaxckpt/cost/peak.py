"""Last pass of a replay: bytes alive at every step, from the live ranges of its buffers; their maximum is the peak.

Arguments and results have memory of their own and are not counted, nor are temporaries that fit in the memory of
results which are not written yet (`output_reuse`). A kernel may write over a buffer of the same size and shape that
dies there. Exact for the sizes in the graph and the fusion rules; padding, fragmentation, workspaces that a compiler
picks by itself and changes of order that its scheduler makes are left out.

Read after `buffer_liveness` and `output_reuse`; `replay` asks.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import accumulate

from jaxckpt.cost.buffer_liveness import Buffers
from jaxckpt.cost.output_reuse import BufferLiveRange, placed_in_outputs


def live_bytes(buffers: Buffers, *, external: Collection[int], results: Iterable[int]) -> tuple[int, ...]:
    """Bytes of temporaries alive at each step, workspaces included.

    External buffers, arguments and results, have memory of their own; `results` are those that take over no argument.
    """
    births, deaths, size_bytes = buffers.births, buffers.deaths, buffers.size_bytes
    length = len(buffers.events)
    change_bytes = [0] * (length + 1)
    dying: defaultdict[int, list[int]] = defaultdict(list)
    placed = {*external, *_placed_in_outputs(buffers, external, results)}
    for buffer, birth in births.items():
        if buffer not in placed:
            death = deaths[buffer]
            change_bytes[birth] += size_bytes[buffer]
            change_bytes[death + 1] -= size_bytes[buffer]
            dying[death].append(buffer)
    for span in buffers.loops.spans(placed):
        change_bytes[span.birth] += span.size_bytes
        change_bytes[span.death + 1] -= span.size_bytes
    alive_bytes = list(accumulate(change_bytes[:length]))
    for buffer in buffers.in_place - placed:
        at = births[buffer]
        over = next((old for old in dying.get(at, ()) if _is_overwritten(buffers, old, buffer)), None)
        if over is not None:
            dying[at].remove(over)
            alive_bytes[at] -= size_bytes[buffer]
    for at, workspace_bytes in buffers.workspace_bytes.items():
        alive_bytes[at] += workspace_bytes
    return tuple(alive_bytes)


def _is_overwritten(buffers: Buffers, old: int, new: int) -> bool:
    is_older = buffers.births[old] < buffers.births[new]
    return is_older and buffers.size_bytes[old] == buffers.size_bytes[new] and old not in buffers.reshaped


def _placed_in_outputs(buffers: Buffers, external: Collection[int], results: Iterable[int]) -> frozenset[int]:
    """Temporaries, slots of branches among them, in the memory of results that take over no argument."""
    temporaries = [_live_range(buffers, buffer) for buffer in buffers.births if buffer not in external]
    temporaries += (
        BufferLiveRange(buffer=slot, size_bytes=span.size_bytes, birth=span.birth, death=span.death)
        for slot, span in buffers.loops.branch_slots.items()
    )
    return placed_in_outputs(temporaries, [_live_range(buffers, r) for r in results if r in buffers.births])


def _live_range(buffers: Buffers, buffer: int) -> BufferLiveRange:
    birth, death = buffers.births[buffer], buffers.deaths[buffer]
    return BufferLiveRange(buffer=buffer, size_bytes=buffers.size_bytes[buffer], birth=birth, death=death)
