"""Finds what to evict: the least score among all candidates, among a sample, at random, or in the cheapest window.

Among all candidates ties go to the one that became evictable last, and ties of score 0 to the first, as in DTR's
simulator; in a sample, to the last one looked at. Of equal windows the one at the lowest address is taken, as in Coop.

Evicting one value here and one there frees bytes that do not lie together. Coop's observation is that for a request of
M bytes only runs of neighbours matter, and that the cheapest of them is found by moving two ends over the pool: the
right one until the run is large enough, the left one while it stays so. That is the least cost for this one request.
Where a run is larger than the request, what it frees besides serves the next ones; weighed by the byte, a large run
can be cheaper than a small one.

Read after `score`. Source: Zhang et al., Coop, NeurIPS 2023, section 3.3. Complexity: O(n) for a window, in which each
block enters and leaves once.
"""

from math import inf
from typing import Any

from jaxckpt.dynamic.compiled import called, compiled
from jaxckpt.dynamic.evictors import Cost, Search, Size
from jaxckpt.dynamic.pool import FREE
from jaxckpt.dynamic.score import regenerate, score
from jaxckpt.dynamic.state import Machine

SAMPLE, RANDOM = int(Search.SAMPLE), int(Search.RANDOM)
REGENERATION, BYTES = int(Cost.REGENERATION), int(Size.BYTES)


@compiled
def least(m: Machine) -> int:
    """The storage to evict, among at least one."""
    now = m.now[0]
    now.searches += 1
    if now.search == RANDOM:
        now.looked_at += 1
        return m.candidates[draw(m, now.candidate_count)]
    if now.cost == REGENERATION:
        regenerate(m)
    if now.search != SAMPLE:
        return least_of_all(m)
    best, least_score = -1, inf
    stride, place = max(int(now.candidate_count**0.5), 1), 0
    while place < now.candidate_count:
        found = score(m, m.candidates[place])
        now.looked_at += 1
        if best < 0 or found <= least_score:
            best, least_score = m.candidates[place], found
        place += 1 + draw(m, stride)
    return best


@compiled
def least_of_all(m: Machine) -> int:
    """The storage of the least score."""
    now, st = m.now[0], m.storages
    best, least_score = -1, inf
    now.looked_at += now.candidate_count
    for i in range(now.candidate_count):
        s = m.candidates[i]
        found = score(m, s)
        if best < 0 or found < least_score:
            best, least_score = s, found
        elif found == least_score:
            later = st[s].stamp > st[best].stamp
            if later != (found == 0):
                best = s
    return best


@compiled
def draw(m: Machine, below: int) -> int:
    """A number from 0 to `below` - 1, by a linear congruential generator."""
    now = m.now[0]
    now.seed = (now.seed * 1103515245 + 12345) % 2147483648
    return (now.seed >> 8) % max(below, 1)


@compiled
def window(m: Machine, need: int) -> tuple[int, int]:
    """The cheapest run of blocks to evict: the first place in `m.window_blocks` and the one behind the last."""
    now, blocks, count = m.now[0], m.blocks, 0
    now.searches += 1
    block = blocks.area[0].head
    while block >= 0 and blocks.blocks[block].start < blocks.area[0].zone:
        b = blocks.blocks[block]
        m.window[0, count] = b.bytes
        m.window_blocks[count] = block
        if b.owner == FREE:
            m.window[1, count] = 0.0
        elif m.storages[b.owner].slot < 0:
            m.window[1, count] = -1.0
        else:
            m.window[1, count] = score(m, b.owner)
        count += 1
        block = b.after
    now.looked_at += count
    return cheapest_window(m.window[0], m.window[1], count, need, now.gain == BYTES)


@called
def cheapest_window(sizes: Any, costs: Any, count: int, need: int, by_byte: bool) -> tuple[int, int]:
    """The run of blocks, in order of address, of at least `need` bytes whose costs have the least sum.

    Costs are 0 where a block is free, less than 0 where it must stay, infinite where it should go last. With `by_byte`
    the sum of a run's costs is divided by its bytes.

    Returns:
      The first block and the one behind the last; (0, 0) where no run is large enough. Of equally cheap runs the one
      that is found first, at the lowest address. Runs with fewer infinite costs come before all others.
    """
    # One loop over its running sums: in pieces it would hand nine numbers from each to the next.
    best_first, best_end, best_last_resorts, best_cost = 0, 0, count + 1, inf
    first, size, cost, last_resorts = 0, 0, 0.0, 0
    for end in range(count):
        if costs[end] < 0:
            first, size, cost, last_resorts = end + 1, 0, 0.0, 0
            continue
        size += sizes[end]
        if costs[end] == inf:
            last_resorts += 1
        else:
            cost += costs[end]
        while size >= need:
            weighed = cost / size if by_byte else cost
            if last_resorts < best_last_resorts or (last_resorts == best_last_resorts and weighed < best_cost):
                best_first, best_end, best_last_resorts, best_cost = first, end + 1, last_resorts, weighed
            size -= sizes[first]
            if costs[first] == inf:
                last_resorts -= 1
            else:
                cost -= costs[first]
            first += 1
            if first > end:
                cost = 0.0  # what rounding left
    return best_first, best_end
