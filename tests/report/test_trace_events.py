"""A memory map as a trace: it keeps to the format, and no byte of it is lost."""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st

from jaxckpt._errors import FootprintFileError
from jaxckpt.compiler import Footprint
from jaxckpt.hlo import Allocation, Buffer, Kernel, MemoryMap, Part, Space, Use, step_s
from jaxckpt.machine import Target
from jaxckpt.report.trace_events import LIVE, OTHER_SCOPES, TOTAL, save_trace, trace_events

SCOPES = ["", "GPT/head", *(f"GPT/block_{i}/{part}" for i in range(3) for part in ("attn/qkv", "mlp"))]
NEEDED = {
    "M": {"name", "pid", "args"},
    "X": {"name", "pid", "tid", "ts", "dur", "cat"},
    "C": {"name", "pid", "ts", "args"},
    "i": {"name", "pid", "ts", "s"},
}
METADATA = {"process_name": ("name", str), "thread_name": ("name", str), "thread_sort_index": ("sort_index", int)}


def faults(trace: dict[str, Any]) -> Iterator[str]:
    """Where a trace breaks the Trace Event Format, or what viewers of it need."""
    json.loads(json.dumps(trace, allow_nan=False))
    if trace.get("displayTimeUnit") not in ("ms", "ns"):
        yield "no unit of time"
    last_ts, named, series, ends = 0.0, set(), {}, defaultdict(float)
    for number, event in enumerate(trace["traceEvents"]):
        phase = event["ph"]
        if not NEEDED.get(phase, {"a phase that we know"}) <= set(event):
            yield f"event {number}: {event}"
            continue
        if event.get("ts", 0) < last_ts:
            yield f"event {number} goes back in time"
        last_ts = event.get("ts", last_ts)
        match phase:
            case "M":
                key, kind = METADATA[event["name"]]
                if type(event["args"].get(key)) is not kind:
                    yield f"event {number} names nothing"
                named.add(event["tid"])
            case "X":
                if event["dur"] <= 0 or event["tid"] not in named:
                    yield f"event {number}: a slice without length or on a track without name"
                if event["ts"] < ends[event["tid"]] - 1e-6:
                    yield f"event {number} overlaps the slice before it"
                ends[event["tid"]] = event["ts"] + event["dur"]
            case "C":
                if any(type(value) is not int or value < 0 for value in event["args"].values()):
                    yield f"event {number} counts what is no number of bytes"
                if series.setdefault(event["name"], list(event["args"])) != list(event["args"]):
                    yield f"event {number} has other series than the first of its counter"
            case "i":
                if event["s"] not in ("g", "p", "t"):
                    yield f"event {number} has no scope"


def of(trace: dict[str, Any], phase: str, name: str | None = None) -> list[dict[str, Any]]:
    return [e for e in trace["traceEvents"] if e["ph"] == phase and name in (None, e["name"])]


def sum_at(trace: dict[str, Any], ts: float, name: str = LIVE) -> int:
    """What a counter shows at a time: its last event up to then."""
    *_, last = (event for event in of(trace, "C", name) if event["ts"] <= ts)
    return sum(last["args"].values())


@st.composite
def memories(draw) -> MemoryMap:
    count = draw(st.integers(1, 12))
    kernels = tuple(
        Kernel(
            name=f"fusion.{i}",
            opcode=draw(st.sampled_from(["fusion", "copy-start", "while"])),
            scope=draw(st.sampled_from(SCOPES)),
            part=draw(st.sampled_from(Part)),
            count=draw(st.integers(1, 4)),
            traffic_bytes=draw(st.integers(0, 10**9)),
        )
        for i in range(count)
    )
    allocations = (
        Allocation(index=0, size_bytes=10**6, use=Use.ARGUMENT),
        Allocation(index=1, size_bytes=10**9, use=Use.TEMPORARY),
        Allocation(index=2, size_bytes=10**9, use=Use.TEMPORARY, space=Space.HOST),
    )
    buffers = []
    for id_ in range(draw(st.integers(0, 12))):
        born = draw(st.integers(0, count - 1))
        buffers.append(
            Buffer(
                id=id_,
                size_bytes=draw(st.integers(0, 10**6)),
                offset_bytes=0,
                allocation=draw(st.integers(0, 2)),
                born=born,
                dies=draw(st.integers(born, count - 1)),
                dtype="float32",
                shape=(1,),
                scope=draw(st.sampled_from(SCOPES)),
            )
        )
    return MemoryMap(program="jit_step", kernels=kernels, buffers=tuple(buffers), allocations=allocations)


@given(memories(), st.integers(1, 4), st.integers(1, 9), st.booleans(), st.data())
def test_every_trace_keeps_to_the_format_and_adds_up_at_every_kernel(memory, depth, most_series, timed, data):
    durations = st.lists(st.floats(0, 2), min_size=len(memory.kernels), max_size=len(memory.kernels))
    seconds = data.draw(durations) if timed else None
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("jaxckpt.report.trace_events._DEPTH", depth)
        patched.setattr("jaxckpt.report.trace_events._MOST_SERIES", most_series)
        trace = trace_events(memory, seconds=seconds)
    assert not list(faults(trace))
    slices = of(trace, "X")
    assert [each["name"] for each in slices] == [kernel.name for kernel in memory.kernels]
    for each, live_bytes in zip(slices, memory.live_bytes, strict=True):
        assert sum_at(trace, each["ts"]) == sum_at(trace, each["ts"], TOTAL) == live_bytes
    (peak,) = of(trace, "i", "peak")
    assert sum_at(trace, peak["ts"]) == peak["args"]["bytes"] == memory.peak_bytes
    assert sum_at(trace, float("inf")) == 0


@pytest.fixture
def memory() -> MemoryMap:
    kernels = tuple(
        Kernel(name=f"k{i}", opcode="fusion", scope=s, part=part, source="gpt.py:3")
        for i, (s, part) in enumerate(
            [("GPT/block_0/mlp", Part.FORWARD), ("GPT/head", Part.FORWARD), ("GPT/block_0/mlp", Part.BACKWARD)]
        )
    )
    lives = [("GPT/block_0/mlp", 10, 0, 2), ("GPT/block_0/attn", 5, 0, 0), ("GPT/head", 100, 1, 1), ("", 1, 2, 2)]
    buffers = tuple(
        Buffer(id=i, size_bytes=n, offset_bytes=0, allocation=0, born=b, dies=d, dtype="int8", shape=(n,), scope=s)
        for i, (s, n, b, d) in enumerate(lives)
    )
    allocations = (Allocation(index=0, size_bytes=128, use=Use.TEMPORARY),)
    return MemoryMap(program="jit_step", kernels=kernels, buffers=buffers, allocations=allocations)


def test_layers_are_series_and_kernels_slices_on_tracks_of_parts(memory):
    trace = trace_events(memory, seconds=[2e-6, 3e-6, 1e-6])
    assert [(e["ts"], e["args"]) for e in of(trace, "C", LIVE)] == [
        (0.0, {"GPT/block_0": 15, "GPT/head": 0, "(no scope)": 0}),
        (2.0, {"GPT/block_0": 10, "GPT/head": 100, "(no scope)": 0}),
        (5.0, {"GPT/block_0": 10, "GPT/head": 0, "(no scope)": 1}),
        (6.0, {"GPT/block_0": 0, "GPT/head": 0, "(no scope)": 0}),
    ]
    tracks = {e["tid"]: e["args"]["name"] for e in of(trace, "M", "thread_name")}
    assert [(e["ts"], e["dur"], tracks[e["tid"]]) for e in of(trace, "X")] == [
        (0.0, 2.0, "forward"),
        (2.0, 3.0, "forward"),
        (5.0, 1.0, "backward"),
    ]
    assert of(trace, "i", "peak")[0]["args"] == {"bytes": 110, "kernel": "k1"}


def test_the_lowest_layers_are_added_up(memory, monkeypatch):
    monkeypatch.setattr("jaxckpt.report.trace_events._MOST_SERIES", 1)
    (first, *_) = of(trace_events(memory), "C", LIVE)
    assert list(first["args"]) == ["GPT/head", OTHER_SCOPES]


def test_counters_are_written_only_where_something_changed(memory):
    still = MemoryMap(program="p", kernels=memory.kernels, buffers=(memory.buffers[0],), allocations=memory.allocations)
    assert [e["ts"] for e in of(trace_events(still), "C", LIVE)] == [0.0, 3.0]


@pytest.mark.parametrize("seconds", [[1.0], [1.0, -1.0, 1.0]])
def test_durations_that_do_not_fit_are_refused(memory, seconds):
    with pytest.raises(ValueError, match="durations for 3 kernels"):
        trace_events(memory, seconds=seconds)


def footprint(memory: MemoryMap | None, target: str = "h200") -> Footprint:
    seconds = 0.0 if memory is None else step_s(memory, Target("h200").rates)
    sizes = {"argument_bytes": 1, "output_bytes": 0, "alias_bytes": 0, "temp_bytes": 128}
    return Footprint(**sizes, target=target, memory=memory, step_s=seconds)


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_a_file_holds_the_trace_with_estimated_times(tmp_path, memory, name):
    save_trace(footprint(memory), tmp_path / name)
    data = (tmp_path / name).read_bytes()
    trace = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)
    assert not list(faults(trace))
    assert trace["otherData"]["time"] == "estimated by roofline"
    assert trace["otherData"]["total_bytes"] == 129
    assert [each.name for each in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("target", ["our-own-chip", "attached"])
def test_rates_that_do_not_give_the_estimate_give_every_kernel_one_unit_of_time(tmp_path, memory, target):
    save_trace(footprint(memory, target), tmp_path / "a.json")
    trace = json.loads((tmp_path / "a.json").read_text())
    assert trace["otherData"]["time"] == "one microsecond a kernel"
    assert {event["dur"] for event in of(trace, "X")} == {1.0}


def test_without_a_memory_map_or_a_folder_nothing_is_written(tmp_path, memory):
    with pytest.raises(FootprintFileError, match="nothing to draw"):
        save_trace(footprint(None), tmp_path / "a.json")
    with pytest.raises(FootprintFileError, match="mkdir -p"):
        save_trace(footprint(memory), tmp_path / "no" / "a.json")
    assert not list(tmp_path.iterdir())


def test_the_checker_sees_faults(memory):
    good = trace_events(memory)
    assert not list(faults(good))
    events = good["traceEvents"]
    for wrong in (
        [*events, {"ph": "?"}],
        [*events, events[-1] | {"ts": 0.5}],
        [*events, events[-1] | {"args": {"bytes": -1}}],
        [*events, events[-1] | {"args": {"other": 1}}],
        [event for event in events if event["ph"] != "M"],
        [*events, of(good, "X")[0] | {"ts": 99.0, "dur": 0}],
    ):
        assert list(faults(good | {"traceEvents": wrong}))
