"""Storages become candidates, are locked, and go: one by the rule's score, or a window of neighbours in memory.

A storage is a candidate while nothing uses it, it can be recomputed, and it is not pinned. Read after `search`.
"""

from jaxckpt.dynamic.compiled import compiled, now_ns
from jaxckpt.dynamic.evictors import Cost
from jaxckpt.dynamic.pool import FREE, release
from jaxckpt.dynamic.score import mark_dirty
from jaxckpt.dynamic.search import least, window
from jaxckpt.dynamic.state import EVENT_EVICT, Machine
from jaxckpt.dynamic.union_find import join_neighbours

CLASSES, NEIGHBOURS = int(Cost.CLASSES), int(Cost.NEIGHBOURS)


@compiled
def note(m: Machine, what: int, which: int, figure: int = 0) -> None:
    """Writes down what happened, where there is room for it."""
    now = m.now[0]
    if now.events < len(m.events):
        m.events[now.events, 0] = what
        m.events[now.events, 1] = which
        m.events[now.events, 2] = figure
    now.events += 1


@compiled
def add_candidate(m: Machine, s: int) -> None:
    """Makes a storage a candidate, the last in line."""
    st, now = m.storages[s], m.now[0]
    if st.slot >= 0 or st.fixed or st.pinned or st.bytes < now.least:
        return
    now.stamp += 1
    st.stamp = now.stamp
    st.slot = now.evictable
    m.pool[now.evictable] = s
    now.evictable += 1


@compiled
def remove_candidate(m: Machine, s: int) -> None:
    """Takes a storage from among the candidates."""
    now, place = m.now[0], m.storages[s].slot
    if place < 0:
        return
    now.evictable -= 1
    last = m.pool[now.evictable]
    m.pool[place] = last
    m.storages[last].slot = place
    m.storages[s].slot = -1


@compiled
def lock(m: Machine, s: int) -> None:
    """Keeps a storage in memory while it is used."""
    remove_candidate(m, s)
    m.storages[s].locks += 1


@compiled
def unlock(m: Machine, s: int) -> None:
    """Ends one use."""
    m.storages[s].locks -= 1
    if m.storages[s].locks == 0:
        add_candidate(m, s)


@compiled
def evict(m: Machine, s: int) -> None:
    """Drops a storage and its views; it can be recomputed."""
    st = m.storages[s]
    free(m, s)
    forget(m, s)
    if m.now[0].cost == CLASSES or m.now[0].cost == NEIGHBOURS:
        join_neighbours(m, s)
    st.dirty = 1
    mark_dirty(m, s)
    note(m, EVENT_EVICT, s)


@compiled
def free(m: Machine, s: int) -> None:
    """Gives a storage's bytes back."""
    st = m.storages[s]
    m.now[0].memory -= st.bytes
    if st.block >= 0:
        release(m.blocks, st.block)
        st.block = -1


@compiled
def forget(m: Machine, s: int) -> None:
    """A storage is no longer in memory."""
    st = m.storages[s]
    remove_candidate(m, s)
    st.material = 0
    for i in range(st.tensor, st.tensor + st.tensors):
        m.tensors[m.tensors_of[i]].defined = 0


@compiled
def evict_one(m: Machine) -> bool:
    """Evicts the candidate of the least score; whether there was one."""
    now = m.now[0]
    if now.evictable == 0:
        return False
    begin = now_ns(m.tick)
    s = least(m)
    now.search_ns += now_ns(m.tick) - begin
    now.forced += 1
    evict(m, s)
    return True


@compiled
def evict_window(m: Machine, need: int) -> bool:
    """Evicts the cheapest run of blocks of at least `need` bytes; whether there was one."""
    now = m.now[0]
    begin = now_ns(m.tick)
    first, end = window(m, need)
    now.search_ns += now_ns(m.tick) - begin
    count = 0
    for i in range(first, end):  # blocks merge while they are freed: owners first
        owner = m.blocks.blocks[m.window_blocks[i]].owner
        if owner != FREE:
            m.window_blocks[first + count] = owner
            count += 1
    for i in range(first, first + count):
        now.forced += 1
        evict(m, m.window_blocks[i])
    return end > first
