"""Frees storages for good: what nobody makes, and what a memory with `Dealloc.BANISH` releases.

A storage may go for good while no evicted value that the program may still ask for is computed from it. What is in
memory and was computed from it then has to stay, because nothing could bring it back; what was evicted and is asked
for by nobody goes with it. Read after `eviction`.

Source: Kirisame et al., ICLR 2021, section 4 (banishing).
"""

from jaxckpt.dynamic.compiled import compiled
from jaxckpt.dynamic.eviction import forget, free, note, remove_candidate
from jaxckpt.dynamic.memory import Dealloc
from jaxckpt.dynamic.score import mark_dirty
from jaxckpt.dynamic.state import EVENT_FREE, Machine
from jaxckpt.dynamic.union_find import leave

BANISH = int(Dealloc.BANISH)


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
    """Walks from a storage down through evicted ones; True if the program may still read one of them."""
    st, now, depth = m.storages, m.now[0], 1
    now.walk += 1
    m.walk[0] = s
    while depth:
        depth -= 1
        here = m.walk[depth]
        for i in range(st[here].down, st[here].down + st[here].downs):
            if m.down.call[i] > now.issued:
                break
            other = m.down.storage[i]
            if st[other].mark == now.walk or st[other].gone:
                continue
            st[other].mark = now.walk
            if st[other].material:
                if pin:
                    remove_candidate(m, other)
                    st[other].pinned = 1
                    if st[other].refs == 0:
                        defer_free(m, other)  # nobody asks for it: it goes as soon as nothing evicted needs it
            elif m.calls[m.tensors[m.tensors_of[st[other].tensor]].call].times == 0:
                continue  # it is being made right now
            elif not pin and (st[other].refs > 0 or now.dealloc == BANISH):
                return True
            else:
                if pin:
                    st[other].gone = 1
                    if st[other].node >= 0:
                        leave(m, other)
                m.walk[depth] = other
                depth += 1
    return False


@compiled
def banish(m: Machine, s: int) -> bool:
    """Frees a storage for good, if nothing evicted needs it; whether it is gone."""
    st = m.storages[s]
    if st.gone or st.lent or st.locks > 0 or st.refs > 0 or is_needed(m, s):
        return False
    pin_descendants(m, s)
    if st.material:
        free(m, s)
        forget(m, s)
        m.now[0].banished += 1
        note(m, EVENT_FREE, s)
    elif st.node >= 0:
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
