"""The sliding window finds the cheapest contiguous run, as trying all of them does, looking at each block once."""

import math
import random

import numpy as np
import pytest

from jaxckpt.dynamic.search import cheapest_window

INFINITE = math.inf


def all_windows(sizes, costs, need, *, by_byte=False):
    """(last resorts, cost, by the byte if asked) of the cheapest run by brute force, or None."""
    best = None
    for first in range(len(sizes)):
        size, price, last_resorts = 0, 0, 0
        for end in range(first, len(sizes)):
            if costs[end] < 0:
                break
            size += sizes[end]
            last_resorts += costs[end] == INFINITE
            price += 0 if costs[end] == INFINITE else costs[end]
            if size >= need:
                found = last_resorts, price / size if by_byte else price
                best = min(best or found, found)
                break
    return best


def random_pool(draw):
    """Blocks as a pool has them: free ones apart from each other, some that must stay, some to go last."""
    sizes, costs = [], []
    for _ in range(draw.randint(1, 24)):
        kind = draw.random()
        free = kind < 0.25 and (not costs or costs[-1] != 0)
        costs.append(0 if free else -1 if kind < 0.4 else INFINITE if kind < 0.5 else draw.randint(1, 1000))
        sizes.append(draw.randint(1, 64))
    return sizes, costs


@pytest.mark.parametrize("by_byte", [False, True])
def test_the_window_is_the_cheapest_run_of_10000_random_pools(by_byte):
    draw = random.Random(0)
    none = 0
    for _ in range(10_000):
        sizes, costs = random_pool(draw)
        need = draw.randint(1, 200)
        arrays = np.array(sizes, dtype=float), np.array(costs, dtype=float)
        first, end = cheapest_window(*arrays, len(sizes), need, by_byte)
        expected = all_windows(sizes, costs, need, by_byte=by_byte)
        if expected is None:
            assert first == end == 0
            none += 1
            continue
        run = costs[first:end]
        assert sum(sizes[first:end]) >= need and min(run) >= 0
        price = sum(c for c in run if c != INFINITE)
        assert (run.count(INFINITE), price / sum(sizes[first:end]) if by_byte else price) == expected
    assert 100 < none < 9_900


def test_among_equals_the_lowest_address_is_taken():
    ones = np.ones(6)
    assert cheapest_window(ones, ones, 6, 2, False) == (0, 2)


def test_nothing_that_must_stay_is_inside():
    sizes, costs = np.array([4.0, 4.0, 4.0]), np.array([1.0, -1.0, 1.0])
    assert cheapest_window(sizes, costs, 3, 4, False) == (0, 1)
    assert cheapest_window(sizes, costs, 3, 5, False) == (0, 0)
