"""Heap events become lifetimes: hand-written ones, and random ones held against a count of bytes."""

from types import SimpleNamespace

from hypothesis import given, strategies as st

from jaxckpt.hlo.live_ranges import LiveRange, live_ranges

ALLOCATE, FREE, SHARE = 0, 1, 2


def trace(*events):
    """Events as (kind, buffer) or (SHARE, buffer, with whom)."""
    return SimpleNamespace(
        events=[
            SimpleNamespace(kind=kind, buffer_id=buffer, share_with_canonical_id=shared[0] if shared else 0)
            for kind, buffer, *shared in events
        ]
    )


def read(events, born, *, last_read=None, handed_on=(), end=9):
    last_read = last_read or {}
    return live_ranges(
        trace(*events),
        born=born.get,
        is_written=lambda buffer: buffer not in handed_on,
        last_read=lambda buffer: last_read.get(buffer, born[buffer]),
        end=end,
    )


def test_a_buffer_ends_at_its_last_reader():
    events = [(ALLOCATE, 1), (ALLOCATE, 2), (FREE, 1), (ALLOCATE, 3), (FREE, 2), (FREE, 3)]
    found, disorder = read(events, {1: 0, 2: 2, 3: 6}, last_read={1: 4, 2: 8, 3: 7})
    assert found == {1: LiveRange(born=0, dies=4), 2: LiveRange(born=2, dies=8), 3: LiveRange(born=6, dies=7)}
    assert disorder == 0


def test_a_misplaced_reader_ends_before_the_next_allocation():
    found, _ = read([(ALLOCATE, 1), (FREE, 1), (ALLOCATE, 2), (FREE, 2)], {1: 0, 2: 3}, last_read={1: 8})
    assert found[1] == LiveRange(born=0, dies=2)


def test_memory_that_is_taken_over_changes_hands():
    events = [(ALLOCATE, 1), (SHARE, 2, 1), (FREE, 1), (FREE, 2)]
    found, _ = read(events, {1: 0, 2: 4}, last_read={1: 4, 2: 7})
    assert found == {1: LiveRange(born=0, dies=3), 2: LiveRange(born=4, dies=7)}


def test_memory_freed_in_the_kernel_that_takes_it_is_taken_over():
    events = [(ALLOCATE, 1), (ALLOCATE, 3), (FREE, 1), (SHARE, 2, 1), (FREE, 2), (FREE, 3)]
    found, _ = read(events, {1: 0, 2: 4, 3: 4}, last_read={1: 4, 2: 6})
    assert found[1] == LiveRange(born=0, dies=3)
    assert found[2] == LiveRange(born=4, dies=6)


def test_what_only_hands_memory_on_has_no_life_of_its_own():
    events = [(ALLOCATE, 1), (SHARE, 2, 1), (FREE, 1), (SHARE, 3, 1), (FREE, 2), (FREE, 3)]
    found, _ = read(events, {1: 0, 2: 2, 3: 5}, last_read={3: 8}, handed_on={2})
    assert found == {1: LiveRange(born=0, dies=4), 3: LiveRange(born=5, dies=8)}


def test_memory_freed_and_reused_in_a_loop_is_free_in_between():
    events = [(ALLOCATE, 1), (FREE, 1), (ALLOCATE, 2), (FREE, 2), (SHARE, 3, 1), (SHARE, 4, 1), (FREE, 3), (FREE, 4)]
    found, _ = read(events, {1: 0, 2: 2, 3: 5, 4: 7}, last_read={4: 8}, handed_on={4})
    assert found[1].dies <= 1
    assert found[3] == LiveRange(born=5, dies=8)
    assert 4 not in found


def test_the_place_of_a_loops_operand_says_nothing_of_kernels():
    """XLA writes the operand of a loop in a loop behind copies of the body, which its heap allocates after it."""
    events = [(ALLOCATE, 1), (SHARE, 2, 1), (ALLOCATE, 3), (FREE, 3), (FREE, 1), (FREE, 2)]
    found, disorder = read(events, {1: 0, 2: 6, 3: 4}, last_read={2: 7, 3: 5}, handed_on={2})
    assert found == {1: LiveRange(born=0, dies=7), 3: LiveRange(born=4, dies=5)}
    assert disorder == 0


def test_what_is_never_freed_lives_to_the_end():
    assert read([(ALLOCATE, 1)], {1: 3})[0] == {1: LiveRange(born=3, dies=9)}


def test_events_out_of_order_are_counted():
    assert read([(ALLOCATE, 1), (ALLOCATE, 2)], {1: 5, 2: 3})[1] == 1


@st.composite
def heaps(draw):
    """A program of kernels that each write a few buffers, and the events of a heap that serves it."""
    length = draw(st.integers(1, 12))
    buffers, events = {}, []
    alive = {}
    for at in range(length):
        for _ in range(draw(st.integers(0, 3))):
            buffer = len(buffers) + 1
            buffers[buffer] = (at, draw(st.integers(at, length - 1)), draw(st.integers(1, 100)))
            alive[buffer] = buffers[buffer][1]
            events.append((ALLOCATE, buffer))
        for buffer in [b for b, dies in alive.items() if dies == at]:
            events.append((FREE, buffer))
            del alive[buffer]
    return length, buffers, events


@given(heaps())
def test_the_peak_is_the_heaps_own(heap):
    length, buffers, events = heap
    found, disorder = read(
        events,
        {b: born for b, (born, _, _) in buffers.items()},
        last_read={b: dies for b, (_, dies, _) in buffers.items()},
        end=length - 1,
    )
    assert disorder == 0
    heap_bytes = peak_bytes = 0
    for kind, buffer in events:
        heap_bytes += buffers[buffer][2] if kind == ALLOCATE else -buffers[buffer][2]
        peak_bytes = max(peak_bytes, heap_bytes)
    at_once = [sum(buffers[b][2] for b, life in found.items() if life.born <= at <= life.dies) for at in range(length)]
    assert max(at_once, default=0) == peak_bytes
    assert found.keys() == buffers.keys()
