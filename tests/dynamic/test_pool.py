"""The pool keeps its invariants after every operation, and agrees with a model that remembers bytes one by one."""

import pytest
from hypothesis import given, strategies as st

from jaxckpt.dynamic import Pool, PoolError


class Bytes:
    """A pool by brute force: an array with the owner of each byte."""

    def __init__(self, size, zone):
        self.owner = [None] * size
        self.zone = size - zone

    def free_runs(self):
        """Lengths of runs of free bytes, by address; the zone's bound ends a run."""
        runs, begin = {}, None
        for i, owner in enumerate([*self.owner, "end"]):
            if begin is not None and (owner is not None or i == self.zone):
                runs[begin], begin = i - begin, None
            if owner is None and begin is None:
                begin = i
        return runs

    def fits(self, size, small):
        runs = self.free_runs()
        in_zone = size <= small and any(n >= size for at, n in runs.items() if at >= self.zone)
        return in_zone or any(n >= size for at, n in runs.items() if at < self.zone)

    def take(self, owner, at, size):
        assert all(byte is None for byte in self.owner[at : at + size]), "overlap"
        self.owner[at : at + size] = [owner] * size

    def drop(self, owner):
        self.owner = [None if byte == owner else byte for byte in self.owner]


def check(pool, model):
    blocks, at = pool.blocks, 0
    for start, size, _ in blocks:
        assert start == at and size > 0, "blocks lie side by side"
        at += size
    assert at == len(model.owner), "nothing leaks"
    for (start, size, owner), after in zip(blocks, [*blocks[1:], None], strict=True):
        expected = None if owner < 0 else owner
        assert model.owner[start : start + size] == [expected] * size
        if after and owner < 0 and after[2] < 0:
            assert after[0] == model.zone, "free blocks are merged, but not over the zone's bound"
    runs = model.free_runs()
    assert {b[0]: b[1] for b in blocks if b[2] < 0} == runs
    assert pool.free_bytes == sum(runs.values())
    assert pool.largest_free == max((n for start, n in runs.items() if start < model.zone), default=0)


@st.composite
def lives(draw):
    """A pool's options and what is done to it: a size allocates, a negative number releases one of those there."""
    zone = draw(st.sampled_from([0, 0, 16]))
    options = {
        "groups": draw(st.sampled_from([1, 2, 4, 6])),
        "zone": zone,
        "small": 4 if zone else 0,
        "first": draw(st.booleans()),
    }
    return draw(st.integers(24, 120)) + zone, options, draw(st.lists(st.integers(-20, 40), max_size=60))


@given(lives())
def test_nothing_overlaps_leaks_or_stays_apart_after_any_operation(life):
    size, options, operations = life
    pool, model, alive = Pool(size, **options), Bytes(size, options["zone"]), []
    check(pool, model)
    for owner, number in enumerate(operations):
        if number > 0:
            fits = model.fits(number, options["small"])
            at = pool.allocate(owner, number, dense=owner % 2 == 0)
            assert (at is not None) == fits, "served exactly where a free block is large enough"
            if at is not None:
                model.take(owner, at, number)
                alive.append(owner)
        elif alive:
            gone = alive.pop(number % len(alive))
            pool.release(gone)
            model.drop(gone)
        check(pool, model)
    for owner in alive:
        pool.release(owner)
        model.drop(owner)
    check(pool, model)
    assert not pool.spans and pool.free_bytes == size


def test_best_fit_takes_the_smallest_block_first_fit_the_lowest():
    for first, expected in ((False, 60), (True, 0)):
        pool = Pool(100, first=first)
        for owner, size in enumerate([30, 30, 10, 30]):
            pool.allocate(owner, size)
        pool.release(0)
        pool.release(2)
        assert pool.allocate(9, 10) == expected


def test_two_ends_keep_dense_and_cheap_values_apart():
    pool = Pool(100, groups=2)
    dense = [pool.allocate(i, 10, dense=True) for i in range(3)]
    cheap = [pool.allocate(10 + i, 10) for i in range(3)]
    assert dense == [0, 10, 20] and cheap == [90, 80, 70]
    assert pool.largest_free == 40


def test_four_groups_are_two_regions_with_two_ends_each():
    pool = Pool(100, groups=4)
    dense = [pool.allocate(i, 30, dense=True) for i in range(3)]
    assert dense == [0, 30, 70], "the left end of the first region, then the right end of the second"
    assert pool.allocate(10, 10) == 60, "a cheap value takes what is left, wherever that is"


def test_small_values_live_in_the_zone_until_it_is_full():
    pool = Pool(100, zone=10, small=5)
    assert pool.allocate(0, 5) == 90 and pool.allocate(1, 5) == 95
    assert pool.allocate(2, 5) == 0
    assert pool.largest_free == 85


@pytest.mark.parametrize("groups", [0, 3, 5, 8])
def test_other_numbers_of_groups_are_refused(groups):
    with pytest.raises(PoolError, match="cannot be laid out"):
        Pool(10, groups=groups)


def test_an_owner_has_memory_once_and_values_are_counted():
    pool = Pool(10, most=1)
    pool.allocate(0, 1)
    for owner, size in ((0, 1), (1, 1)):
        with pytest.raises(PoolError, match="cannot be done"):
            pool.allocate(owner, size)
    with pytest.raises(PoolError, match="cannot be done"):
        Pool(10).allocate(0, 0)
