"""Storages become candidates, are locked, and go: one by the rule's score, a window of neighbours, or one for good.

A storage is a candidate while nothing uses it, it can be recomputed, and it is not pinned. It is freed for good where
nobody makes it, or where a memory with `Dealloc.BANISH` releases it, while no evicted value that the program may still
ask for is computed from it. What is in memory and was computed from it then has to stay, because nothing could bring
it back; what was evicted and is asked for by nobody goes with it.

Read after `search`. Source: Kirisame et al., ICLR 2021, section 4 (banishing).
"""

from typing import Any

from jaxckpt.dynamic.compiled import compiled, now_ns
from jaxckpt.dynamic.evictors import Cost
from jaxckpt.dynamic.memory import Dealloc
from jaxckpt.dynamic.pool import FREE, release
from jaxckpt.dynamic.score import mark_dirty
from jaxckpt.dynamic.search import least, window
from jaxckpt.dynamic.state import EVENT_EVICT, EVENT_FREE, Machine
from jaxckpt.dynamic.union_find import join_neighbours, leave

CLASSES, NEIGHBOURS, BANISH = int(Cost.CLASSES), int(Cost.NEIGHBOURS), int(Dealloc.BANISH)


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
    if st.slot >= 0 or st.fixed or st.pinned or st.bytes < now.least_bytes:
        return
    now.stamp += 1
    st.stamp = now.stamp
    st.slot = now.candidate_count
    m.candidates[now.candidate_count] = s
    now.candidate_count += 1


@compiled
def remove_candidate(m: Machine, s: int) -> None:
    """Takes a storage from among the candidates."""
    now, place = m.now[0], m.storages[s].slot
    if place < 0:
        return
    now.candidate_count -= 1
    last = m.candidates[now.candidate_count]
    m.candidates[place] = last
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
    st.dirty = 1
    notice_evicted(m, s)
    note(m, EVENT_EVICT, s)


@compiled
def notice_evicted(m: Machine, s: int) -> None:
    """Tells the neighbours of a storage that it is evicted."""
    if m.now[0].cost == CLASSES or m.now[0].cost == NEIGHBOURS:
        join_neighbours(m, s)
    mark_dirty(m, s)


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
    """Evicts the candidate of the least score; True if there was one."""
    now = m.now[0]
    if now.candidate_count == 0:
        return False
    begin = now_ns(m.tick)
    s = least(m)
    now.search_ns += now_ns(m.tick) - begin
    now.forced_evictions += 1
    evict(m, s)
    return True


@compiled
def evict_window(m: Machine, need: int) -> bool:
    """Evicts the cheapest run of blocks of at least `need` bytes; True if there was one."""
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
        now.forced_evictions += 1
        evict(m, m.window_blocks[i])
    return end > first


@compiled
def is_needed(m: Machine, s: int) -> bool:
    """True if an evicted value that the program may still read is computed from a storage."""
    return reach(m, s, False)


@compiled
def pin_descendants(m: Machine, s: int) -> None:
    """Pins the values in memory that are computed from a storage which is freed for good."""
    reach(m, s, True)


@compiled
def reach(m: Machine, s: int, pin: bool) -> bool:
    """Walks from a storage down through evicted ones and lost views; True if the program may still read one of them."""
    # One walk for both questions: what is pinned has to be exactly what would have been needed.
    now, depth = m.now[0], 1
    now.walk += 1
    m.walk[0] = s
    while depth:
        depth -= 1
        source = m.walk[depth]
        here = m.storages[source]
        for i in range(here.down, here.down + here.downs):
            other = m.near[i]
            st = m.storages[other]
            if st.mark == now.walk or st.gone:
                continue
            st.mark = now.walk
            if pin:
                pin_or_lose(m, other)
            if is_being_made(m, other) or (st.material and not lacks_view(m, other, source)):
                continue
            if not pin and (st.refs > 0 or now.dealloc == BANISH):
                return True
            m.walk[depth] = other
            depth += 1
    return False


@compiled
def lacks_view(m: Machine, s: int, source: int) -> bool:
    """True if a storage in memory has lost a view that is computed from another storage too, `source`."""
    st = m.storages[s]
    for i in range(st.tensor, st.tensor + st.tensors):
        view = m.tensors[m.tensors_of[i]]
        if view.defined or not view.shared:
            continue
        call = m.calls[view.call]
        for j in range(call.arg, call.arg + call.args):
            if call.times and m.tensors[m.args[j]].storage == source:
                return True
    return False


@compiled
def is_being_made(m: Machine, s: int) -> bool:
    """True if the call that makes a storage has not come to its end yet."""
    return m.calls[m.tensors[m.tensors_of[m.storages[s].tensor]].call].times == 0


@compiled
def pin_or_lose(m: Machine, s: int) -> None:
    """Keeps a storage that nothing can bring back any more, or forgets it where it is evicted."""
    st = m.storages[s]
    if st.material:
        remove_candidate(m, s)
        st.pinned = 1
        if st.refs == 0:
            defer_free(m, s)  # nobody asks for it: it goes as soon as nothing evicted needs it
    elif not is_being_made(m, s):
        st.gone = 1
        if st.class_ >= 0:
            leave(m, s)


@compiled
def is_in_use(storage: Any) -> bool:
    """True if somebody holds a storage: the program by a name, a call as its operand, or its lender."""
    return storage.refs > 0 or storage.locks > 0 or storage.lent != 0


@compiled
def banish(m: Machine, s: int) -> bool:
    """Frees a storage for good, if nothing evicted needs it; True if it was freed."""
    st = m.storages[s]
    if st.gone or is_in_use(st) or is_needed(m, s):
        return False
    pin_descendants(m, s)
    if st.material:
        free(m, s)
        forget(m, s)
        m.now[0].banished += 1
        note(m, EVENT_FREE, s)
    elif st.class_ >= 0:
        leave(m, s)
    mark_dirty(m, s)
    st.gone = 1
    return True


@compiled
def defer_free(m: Machine, s: int) -> None:
    """Remembers a storage that is to be freed as soon as nothing evicted needs it."""
    now = m.now[0]
    if not m.storages[s].waits:
        m.storages[s].waits = 1
        m.waiting[now.waiting] = s
        now.waiting += 1


@compiled
def free_deferred(m: Machine) -> None:
    """Frees for good what could not be freed when it was released, where it can be by now; once a call."""
    now = m.now[0]
    if now.tried == now.issued or now.waiting == 0:
        return
    now.tried = now.issued
    left = at = 0
    while at < now.waiting:  # freeing one may put others behind the last
        s = m.waiting[at]
        at += 1
        if not m.storages[s].gone and not banish(m, s):
            m.waiting[left] = s
            left += 1
    now.waiting = left
