"""Finds what to evict: the least score among all candidates, among a sample, at random, or in the cheapest window.

Ties go to the candidate that became evictable last, and a score of 0 to the first, as in DTR's simulator. A window
among equals is the one at the lowest address, as in Coop. Read after `score` and `sliding_window`.
"""

from math import inf

from jaxckpt.dynamic.compiled import compiled
from jaxckpt.dynamic.evictors import Cost, Search, Size
from jaxckpt.dynamic.pool import FREE
from jaxckpt.dynamic.score import regenerate, score
from jaxckpt.dynamic.sliding_window import cheapest_window
from jaxckpt.dynamic.state import Machine

SAMPLE, RANDOM = int(Search.SAMPLE), int(Search.RANDOM)
REGENERATION, BYTES = int(Cost.REGENERATION), int(Size.BYTES)


@compiled
def least(m: Machine) -> int:
    """The storage to evict, among at least one."""
    now = m.now[0]
    now.searches += 1
    if now.search == RANDOM:
        now.looked += 1
        return m.pool[draw(m, now.evictable)]
    if now.cost == REGENERATION:
        regenerate(m)
    if now.search != SAMPLE:
        return least_of_all(m)
    best, least_score = -1, inf
    stride, place = max(int(now.evictable**0.5), 1), 0
    while place < now.evictable:
        found = score(m, m.pool[place])
        now.looked += 1
        if best < 0 or found <= least_score:
            best, least_score = m.pool[place], found
        place += 1 + draw(m, stride)
    return best


@compiled
def least_of_all(m: Machine) -> int:
    """The storage of the least score."""
    now, st = m.now[0], m.storages
    best, least_score = -1, inf
    now.looked += now.evictable
    for i in range(now.evictable):
        s = m.pool[i]
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
    now.looked += count
    return cheapest_window(m.window[0], m.window[1], count, need, now.gain == BYTES)
