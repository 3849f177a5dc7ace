"""The heap of some live ranges: as XLA places them, never less than the peak."""

import jax
import pytest
from hypothesis import given, strategies as st

import jaxckpt
from benchmarks.strangers.physics import heat_equation
from benchmarks.strangers.rules import checkpointed
from jaxckpt.cost.heap import heap_bytes
from jaxckpt.cost.loop_liveness import Span
from jaxckpt.machine import targets
from tests.cost.test_output_reuse import some_spans

needs_gpu_target = pytest.mark.skipif(
    not any(status.name == "h200" and status.usable for status in targets()), reason="the CUDA plugin is not installed"
)


def peak_of(ranges: list[Span]) -> int:
    return max((sum(r.size_bytes for r in ranges if r.birth <= at <= r.death) for at in range(30)), default=0)


def placed_one_by_one(ranges: list[Span]) -> int:
    """The definition, address by address."""
    placed: list[tuple[Span, int]] = []
    for new in ranges:
        busy = [(at, at + old.size_bytes) for old, at in placed if old.birth <= new.death and new.birth <= old.death]
        gaps = []
        for begin in {0, *(end for _, end in busy)}:
            end = min((start for start, _ in busy if start >= begin), default=None)
            is_free = all(not (start <= begin < stop) for start, stop in busy)
            if is_free and (end is None or end - begin >= new.size_bytes):
                gaps.append((float("inf") if end is None else end - begin, begin))
        placed.append((new, min(gaps)[1]))
    return max((at + each.size_bytes for each, at in placed), default=0)


@given(some_spans)
def test_the_heap_is_the_smaller_of_two_orders(ranges):
    peak_bytes = peak_of(ranges)
    by_size = sorted(ranges, key=lambda r: (-r.size_bytes, r.birth - r.death))
    by_life = sorted(ranges, key=lambda r: (r.birth - r.death, -r.size_bytes))
    least_bytes = min(placed_one_by_one(by_size), placed_one_by_one(by_life))
    assert heap_bytes(ranges, peak_bytes) == least_bytes >= peak_bytes


@given(some_spans, st.integers(1, 30))
def test_ranges_that_are_alive_together_leave_no_gap(ranges, size_bytes):
    together = [Span(0, 30, r.size_bytes * size_bytes) for r in ranges]
    total_bytes = sum(r.size_bytes for r in together)
    assert heap_bytes(together, total_bytes) == total_bytes


@needs_gpu_target
def test_the_heap_of_compiled_live_ranges_is_that_of_xla():
    """Its temporaries are 7% more than are alive at once, with either version of JAX."""
    checkpoint = checkpointed(jax.checkpoint_policies.dots_saveable)
    step = heat_equation(width=128, layers=3, points=16384, wrap=checkpoint)
    memory = jaxckpt.footprint(step, target="h200").memory
    ranges = [Span(b.born, b.dies, b.size_bytes) for b in memory.temporaries]
    assert heap_bytes(ranges, memory.peak_bytes) == pytest.approx(memory.temp_bytes, rel=1e-3)
    assert memory.temp_bytes > 1.05 * memory.peak_bytes
