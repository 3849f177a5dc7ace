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

from jaxckpt._errors import FootprintFileError, TargetError
from jaxckpt._files import write_atomically
from jaxckpt.compiler import Footprint
from jaxckpt.hlo import Kernel, MemoryMap, Part, kernel_s
from jaxckpt.machine import Target

LIVE = "live bytes"
"""The counter with a series for each layer."""
TOTAL = "live bytes, all layers"
"""The counter of their sum."""
NO_SCOPE = "(no scope)"
OTHER_SCOPES = "(other scopes)"

_PROCESS = 1
_THREADS = {part: number for number, part in enumerate(Part, 1)}
_UNIT_NS = 1000


def trace_events(
    memory: MemoryMap, *, seconds: Sequence[float] | None = None, depth: int = 2, most_series: int = 40
) -> dict[str, Any]:
    """A memory map as one JSON object in Chrome's trace event format.

    Args:
      memory: The data.
      seconds: For each kernel how long it takes in one step; None draws one microsecond each. No kernel is drawn
        shorter than a nanosecond, or what is alive meanwhile could not be seen.
      depth: Layers are scopes cut to so many names.
      most_series: Layers beyond so many, those with the lowest peaks of their own, are added up.

    Returns:
      "traceEvents" in the order of their times, and what they are of. At every time the series of `LIVE` add up to
      the bytes alive then; at the event "peak" to `memory.peak_bytes`.

    Raises:
      ValueError: There are not as many seconds as kernels, or some are negative.

    Example:
      >>> trace_events(MemoryMap(program="step", kernels=(), buffers=(), allocations=()))["otherData"]["program"]
      'step'
    """
    starts_ns = _starts_ns(memory, seconds)
    events = [*_names(memory), *_timed(memory, starts_ns, _layers(memory, depth, most_series))]
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
    """Writes the trace of a footprint, whole or not at all; kernels take what they are estimated to on its target.

    Args:
      footprint: With a memory map. Where its target is not known here, each kernel takes one microsecond.
      path: Of the file, such as "gpt2.json"; ".gz" behind the name packs it, which viewers open as well.

    Raises:
      FootprintFileError: The footprint has no memory map, or the folder is not there.
      OSError: The disk is full, or the folder cannot be written to.
    """
    path = Path(path)
    if footprint.memory is None or not path.parent.is_dir():
        raise _cannot_be_saved(footprint, path)
    trace = trace_events(footprint.memory, seconds=_estimated_s(footprint.target, footprint.memory))
    trace["otherData"] |= {"target": footprint.target, "total_bytes": footprint.total_bytes}
    data = json.dumps(trace, separators=(",", ":")).encode()
    write_atomically(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def _cannot_be_saved(footprint: Footprint, path: Path) -> FootprintFileError:
    lacks_memory = footprint.memory is None
    return FootprintFileError(
        f"save_trace({str(path)!r}): there is {'nothing to draw' if lacks_memory else 'no such folder'}.",
        got="a footprint without a memory map" if lacks_memory else str(path.parent),
        needed="a footprint with a memory map" if lacks_memory else "a folder that exists",
        advice="jaxckpt.footprint(step, *args, target=...)" if lacks_memory else f"mkdir -p {path.parent}",
        path=path,
    )


### Time


def _estimated_s(target: str, memory: MemoryMap) -> tuple[float, ...] | None:
    try:
        rates = Target(target).rates
    except TargetError:  # the footprint comes from elsewhere
        return None
    return tuple(kernel.count * kernel_s(kernel, rates) for kernel in memory.kernels)


def _starts_ns(memory: MemoryMap, seconds: Sequence[float] | None) -> list[int]:
    """When each kernel starts, and when the last one ends."""
    count = len(memory.kernels)
    if seconds is None:
        return [_UNIT_NS * position for position in range(count + 1)]
    if len(seconds) != count or any(s < 0 for s in seconds):
        raise ValueError(f"{len(seconds)} durations for {count} kernels, the shortest {min(seconds, default=0)}")
    return list(accumulate((max(1, round(s * 1e9)) for s in seconds), initial=0))


def _microseconds(nanoseconds: int) -> float:
    return nanoseconds / 1000


### Events


def _names(memory: MemoryMap) -> Iterator[dict[str, Any]]:
    yield _named("process_name", memory.program)
    for part in sorted({kernel.part for kernel in memory.kernels}, key=_THREADS.__getitem__):
        yield _named("thread_name", part.value, thread=_THREADS[part])
        yield _named("thread_sort_index", _THREADS[part], thread=_THREADS[part], key="sort_index")


def _named(what: str, value: str | int, *, thread: int = 0, key: str = "name") -> dict[str, Any]:
    return {"ph": "M", "pid": _PROCESS, "tid": thread, "ts": 0.0, "name": what, "args": {key: value}}


def _timed(memory: MemoryMap, starts_ns: list[int], layers: dict[str, list[int]]) -> Iterator[dict[str, Any]]:
    before: dict[str, int] | None = None
    for position, kernel in enumerate(memory.kernels):
        start_ns = starts_ns[position]
        alive = {layer: timeline[position] for layer, timeline in layers.items()}
        if alive != before:
            yield _counter(LIVE, alive, start_ns)
            yield _counter(TOTAL, {"bytes": memory.live_bytes[position]}, start_ns)
            before = alive
        if position == memory.peak:
            yield _mark("peak", start_ns, {"bytes": memory.peak_bytes, "kernel": kernel.name})
        yield _slice(kernel, start_ns, starts_ns[position + 1] - start_ns, memory.live_bytes[position])
    if memory.kernels:
        yield _counter(LIVE, dict.fromkeys(layers, 0), starts_ns[-1])
        yield _counter(TOTAL, {"bytes": 0}, starts_ns[-1])


def _counter(name: str, values: dict[str, int], start_ns: int) -> dict[str, Any]:
    return {"ph": "C", "pid": _PROCESS, "tid": 0, "ts": _microseconds(start_ns), "name": name, "args": values}


def _mark(name: str, start_ns: int, facts: dict[str, Any]) -> dict[str, Any]:
    at = {"ts": _microseconds(start_ns), "s": "p"}
    return {"ph": "i", "pid": _PROCESS, "tid": 0, **at, "name": name, "args": facts}


def _slice(kernel: Kernel, start_ns: int, duration_ns: int, live_bytes: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": _PROCESS,
        "tid": _THREADS[kernel.part],
        "ts": _microseconds(start_ns),
        "dur": _microseconds(duration_ns),
        "name": kernel.name,
        "cat": kernel.part.value,
        "args": {
            "scope": kernel.scope,
            "op": kernel.op,
            "opcode": kernel.opcode,
            "runs": kernel.count,
            "flops of one run": kernel.flops,
            "traffic bytes of one run": kernel.traffic_bytes,
            "live bytes": live_bytes,
            "source": kernel.source,
        },
    }


### Layers


def _layers(memory: MemoryMap, depth: int, most_series: int) -> dict[str, list[int]]:
    """For each layer its live bytes while each kernel runs, in the order of first bytes; the lowest added up."""
    changes: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(memory.kernels) + 1))
    for buffer in sorted(memory.temporaries, key=lambda b: (b.born, b.id)):
        layer = changes["/".join(buffer.scope.split("/")[:depth]) or NO_SCOPE]
        layer[buffer.born] += buffer.size_bytes
        layer[buffer.dies + 1] -= buffer.size_bytes
    timelines = {name: list(accumulate(layer))[:-1] for name, layer in changes.items()}
    if len(timelines) <= most_series:
        return timelines
    highest = set(sorted(timelines, key=lambda name: -max(timelines[name], default=0))[:most_series])
    rest = [timeline for name, timeline in timelines.items() if name not in highest]
    shown = {name: timeline for name, timeline in timelines.items() if name in highest}
    return shown | {OTHER_SCOPES: [sum(each) for each in zip(*rest, strict=True)]}
