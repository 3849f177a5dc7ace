"""A memory map as a trace in Chrome's event format, which ui.perfetto.dev and chrome://tracing open.

Kernels are slices, one track a part of the step; live temporaries are counters, one series a layer, so that the curve
of each layer stands above the kernels that make it. Time is estimated, or one microsecond a kernel.

Source: Trace Event Format, Google, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from jaxckpt._errors import FootprintFileError
from jaxckpt._files import write_to_place
from jaxckpt.compiler import Footprint
from jaxckpt.hlo import Kernel, MemoryMap, Part, kernels_s
from jaxckpt.ir.scope import scope_at_depth
from jaxckpt.report.estimate import rates_of

LIVE = "live bytes"
"""The counter with a series for each layer."""
TOTAL = "live bytes, all layers"
"""The counter of their sum."""
NO_SCOPE = "(no scope)"
OTHER_SCOPES = "(other scopes)"

_DEPTH = 2
"""Names of a scope that tell layers apart."""
_MOST_SERIES = 40
"""Layers that have a series of their own."""
_THREADS = {part: number for number, part in enumerate(Part, 1)}


def trace_events(memory: MemoryMap, *, seconds: Sequence[float] | None = None) -> dict[str, Any]:
    """A memory map as one JSON object in Chrome's trace event format, events in the order of their times.

    At every time the series of `LIVE` add up to the bytes alive then; at the event "peak" to `memory.peak_bytes`.
    Kernels take `seconds` in one step, at least a nanosecond, or what is alive meanwhile could not be seen; without
    seconds, a microsecond each. Layers are scopes cut to a depth; beyond `_MOST_SERIES`, those with the lowest peaks of
    their own are added up.
    """
    starts_ns = _starts_ns(memory, seconds)
    events = [*_names(memory), *_timed(memory, starts_ns, _layers(memory))]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "program": memory.program,
            "temp_bytes": memory.temp_bytes,
            "peak_bytes": memory.peak_bytes,
            "time": "one microsecond a kernel" if seconds is None else "estimated by roofline",
        },
    }


def save_trace(footprint: Footprint, path: str | Path) -> None:
    """Writes the trace of a footprint, whole or not at all; ".gz" behind the name packs it.

    Kernels take their estimated seconds; a microsecond each where the rates of the footprint's target are not known.
    """
    path, memory = Path(path), footprint.memory
    called = f"save_trace({str(path)!r})"
    if memory is None:
        raise FootprintFileError(
            f"{called}: there is nothing to draw.",
            got="a footprint without a memory map",
            needed="a footprint with a memory map",
            advice="jaxckpt.footprint(step, *args, target=...)",
            path=path,
        )
    rates = rates_of(footprint)
    trace = trace_events(memory, seconds=None if rates is None else kernels_s(memory, rates))
    trace["otherData"] |= {"target": footprint.target, "total_bytes": footprint.total_bytes}
    data = json.dumps(trace, separators=(",", ":")).encode()
    data = gzip.compress(data, mtime=0) if path.suffix == ".gz" else data
    write_to_place(path, data, called=called, error=FootprintFileError)


def _starts_ns(memory: MemoryMap, seconds: Sequence[float] | None) -> list[int]:
    """When each kernel starts, and when the last one ends."""
    count = len(memory.kernels)
    if seconds is None:
        return [1000 * position for position in range(count + 1)]
    if len(seconds) != count or any(s < 0 for s in seconds):
        raise ValueError(f"{len(seconds)} durations for {count} kernels, the shortest {min(seconds, default=0)}")
    return list(accumulate((max(1, round(s * 1e9)) for s in seconds), initial=0))


def _event(phase: str, name: str, facts: dict[str, Any], *, start_ns: int = 0, thread: int = 0) -> dict[str, Any]:
    return {"ph": phase, "pid": 1, "tid": thread, "ts": start_ns / 1000, "name": name, "args": facts}


def _names(memory: MemoryMap) -> Iterator[dict[str, Any]]:
    yield _event("M", "process_name", {"name": memory.program})
    for part in sorted({kernel.part for kernel in memory.kernels}, key=_THREADS.__getitem__):
        thread = _THREADS[part]
        yield _event("M", "thread_name", {"name": part.value}, thread=thread)
        yield _event("M", "thread_sort_index", {"sort_index": thread}, thread=thread)


def _timed(memory: MemoryMap, starts_ns: list[int], layers: dict[str, list[int]]) -> Iterator[dict[str, Any]]:
    before: dict[str, int] | None = None
    for position, kernel in enumerate(memory.kernels):
        start_ns, live_bytes = starts_ns[position], memory.live_bytes[position]
        alive = {layer: timeline[position] for layer, timeline in layers.items()}
        if alive != before:
            yield _event("C", LIVE, alive, start_ns=start_ns)
            yield _event("C", TOTAL, {"bytes": live_bytes}, start_ns=start_ns)
            before = alive
        if position == memory.peak:
            facts = {"bytes": memory.peak_bytes, "kernel": kernel.name}
            yield _event("i", "peak", facts, start_ns=start_ns) | {"s": "p"}
        yield _slice(kernel, start_ns, starts_ns[position + 1] - start_ns, live_bytes)
    if memory.kernels:
        yield _event("C", LIVE, dict.fromkeys(layers, 0), start_ns=starts_ns[-1])
        yield _event("C", TOTAL, {"bytes": 0}, start_ns=starts_ns[-1])


def _slice(kernel: Kernel, start_ns: int, duration_ns: int, live_bytes: int) -> dict[str, Any]:
    facts = {
        "scope": kernel.scope,
        "op": kernel.op,
        "opcode": kernel.opcode,
        "runs": kernel.count,
        "flops of one run": kernel.flops,
        "traffic bytes of one run": kernel.traffic_bytes,
        "live bytes": live_bytes,
        "source": kernel.source,
    }
    event = _event("X", kernel.name, facts, start_ns=start_ns, thread=_THREADS[kernel.part])
    return event | {"dur": duration_ns / 1000, "cat": kernel.part.value}


def _layers(memory: MemoryMap) -> dict[str, list[int]]:
    """For each layer its live bytes while each kernel runs, in the order of first bytes; the lowest added up."""
    changes: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(memory.kernels) + 1))
    for buffer in sorted(memory.temporaries, key=lambda b: (b.born, b.id)):
        layer = changes[scope_at_depth(buffer.scope, _DEPTH) or NO_SCOPE]
        layer[buffer.born] += buffer.size_bytes
        layer[buffer.dies + 1] -= buffer.size_bytes
    timelines = {name: list(accumulate(layer))[:-1] for name, layer in changes.items()}
    if len(timelines) <= _MOST_SERIES:
        return timelines
    highest = set(sorted(timelines, key=lambda name: -max(timelines[name], default=0))[:_MOST_SERIES])
    rest = [timeline for name, timeline in timelines.items() if name not in highest]
    shown = {name: timeline for name, timeline in timelines.items() if name in highest}
    return shown | {OTHER_SCOPES: [sum(each) for each in zip(*rest, strict=True)]}
