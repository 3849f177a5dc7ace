"""Runs a program under a budget, one step after the other, knowing only what was issued so far.

To run a call its operands are locked and brought back where they were evicted, each after its own operands; then room
is made for its results, evicting by the rule; then the clock goes on by its price. Operands are unlocked in order and
become candidates behind the results. What happens at a release, and what room means, is `memory`'s to say.

A recomputed call makes all its results; those that are still there are made twice and the copy is dropped. A view has
no memory: it comes back by its own call over its source. Calls that wait for their operands are on a stack of the
engine's own, so a chain of any length can come back.

Read after `state`, `eviction` and `banishing`. Source: Kirisame et al., ICLR 2021, section 4 and appendix C; the
order of events is that of its simulator.
"""

from typing import Any

from jaxckpt.dynamic import state
from jaxckpt.dynamic.banishing import banish, defer_free, free_deferred, is_needed, pin_descendants
from jaxckpt.dynamic.compiled import compiled, entered, sources
from jaxckpt.dynamic.eviction import (
    add_candidate,
    evict,
    evict_one,
    evict_window,
    forget,
    lock,
    note,
    remove_candidate,
    unlock,
)
from jaxckpt.dynamic.evictors import Cost, Search
from jaxckpt.dynamic.memory import Dealloc, Mode
from jaxckpt.dynamic.pool import allocate, largest_free
from jaxckpt.dynamic.score import mark_dirty
from jaxckpt.dynamic.state import Machine
from jaxckpt.dynamic.union_find import join_neighbours, leave, new_node

COUNTED, SOFT, HINT, HARD = int(Mode.COUNTED), int(Mode.SOFT), int(Mode.HINT), int(Mode.HARD)
EAGER, BANISH, NONE = int(Dealloc.EAGER), int(Dealloc.BANISH), int(Dealloc.NONE)
CLASSES, NEIGHBOURS, WINDOW = int(Cost.CLASSES), int(Cost.NEIGHBOURS), int(Search.WINDOW)


@compiled
def make_room(m: Machine, need: int) -> bool:
    """Evicts until `need` bytes more are within the budget; whether they are."""
    now = m.now[0]
    if now.memory + need > now.budget:
        free_deferred(m)
    while now.memory + need > now.budget:
        if not evict_one(m):
            return False
    return True


@compiled
def give_block(m: Machine, s: int) -> bool:
    """Gives a storage an address, evicting until there is one; whether there is."""
    now, st = m.now[0], m.storages[s]
    if st.bytes == 0:
        return True
    block = allocate(m.blocks, s, st.bytes, st.dense != 0)
    if block < 0 and now.waiting:
        free_deferred(m)
        block = allocate(m.blocks, s, st.bytes, st.dense != 0)
    if block < 0:
        area = m.blocks.area[0]
        now.free_share += area.free_bytes / area.bytes
        now.largest_share += largest_free(m.blocks) / area.bytes
        now.regret += 1
        note(m, state.EVENT_REFUSE, s, area.free_bytes)
    while block < 0:
        if now.search == WINDOW:
            if not evict_window(m, st.bytes):
                return False
        elif not evict_one(m):
            return False
        block = allocate(m.blocks, s, st.bytes, st.dense != 0)
    st.block = block
    note(m, state.EVENT_PLACE, s, m.blocks.blocks[block].start)
    return True


@compiled
def may_take(m: Machine, t: int) -> bool:
    """True if a result may take over the memory of the tensor whose new state it is."""
    now, old = m.now[0], m.tensors[t].replaces
    if old < 0 or not now.in_place or m.storages[m.tensors[t].storage].material:
        return False
    st = m.storages[old]
    if not st.material or st.locks != 1 or st.refs != 1 or st.kept or st.lent or st.bytes == 0:
        return False
    return st.bytes == m.storages[m.tensors[t].storage].bytes and not (stays(st) and is_needed(m, old))


@compiled
def stays(storage: Any) -> bool:
    """True if nothing could bring a storage back."""
    return storage.fixed or storage.pinned


@compiled
def room_for_results(m: Machine, call: int) -> bool:
    """Room for all results of a call that are not there; whether there is."""
    now, c = m.now[0], m.calls[call]
    need = 0
    for t in range(c.out, c.out + c.outs):
        copy = now.mode == COUNTED or not m.tensors[t].defined
        m.tensors[t].takes = may_take(m, t)
        if m.tensors[t].takes and stays(m.storages[m.tensors[t].replaces]):
            pin_descendants(
                m, m.tensors[t].replaces
            )  # or room would be made by evicting what only that could bring back
        if not m.tensors[t].shared and copy and not m.tensors[t].takes:
            need += m.storages[m.tensors[t].storage].bytes
    now.needed, now.failed = need, call
    if now.mode == COUNTED and not make_room(m, need):
        return False
    hold_results(m, call, True)
    if now.mode == HINT:
        make_room(m, need)
    found = blocks_for_results(m, call)
    hold_results(m, call, False)
    if not found:
        return False
    now.memory += need
    now.peak = max(now.peak, now.memory)
    return True


@compiled
def hold_results(m: Machine, call: int, held: bool) -> None:
    """Keeps those results of a call that are there, while room is made for the others: it has no room for them."""
    c = m.calls[call]
    if m.now[0].mode == COUNTED or c.outs == 1:
        return
    for t in range(c.out, c.out + c.outs):
        if m.tensors[t].defined and not m.tensors[t].shared:
            if held:
                lock(m, m.tensors[t].storage)
            else:
                unlock(m, m.tensors[t].storage)


@compiled
def blocks_for_results(m: Machine, call: int) -> bool:
    """Addresses for all results of a call that are not there; whether there are."""
    now, c = m.now[0], m.calls[call]
    if now.mode != HINT and now.mode != HARD:
        return True
    for t in range(c.out, c.out + c.outs):
        s = m.tensors[t].storage
        if m.tensors[t].shared or m.storages[s].material:
            continue
        if not m.tensors[t].takes and not give_block(m, s):
            now.needed = m.storages[s].bytes
            return False
    return True


@compiled
def compute(m: Machine, t: int, repeated: int) -> bool:
    """Runs the call that makes a tensor; all its results are there afterwards. Whether there was room."""
    now, call = m.now[0], m.tensors[t].call
    if not room_for_results(m, call):
        now.status = state.OUT_OF_MEMORY
        return False
    c = m.calls[call]
    note(m, state.EVENT_RUN, call)
    now.clock += c.cost
    now.runs += 1
    if repeated:
        now.repeated_price += c.cost
        now.recomputed += 1
    else:
        now.first += c.cost
    for i in range(c.out, c.out + c.outs):
        if i != t:
            appear(m, i, repeated)
    appear(m, t, repeated)
    c.times += 1
    for i in range(c.out, c.out + c.outs):
        if m.tensors[i].takes:
            take(m, i)
    return True


@compiled
def appear(m: Machine, t: int, repeated: int) -> None:
    """A result is there: its storage becomes a candidate, unless it was there and this is a copy."""
    s = m.tensors[t].storage
    st = m.storages[s]
    if m.tensors[t].defined:
        if m.now[0].mode == COUNTED and not m.tensors[t].shared:
            m.now[0].memory -= st.bytes
        return
    m.tensors[t].defined = 1
    if st.material:
        return
    st.material = 1
    st.times += repeated
    add_candidate(m, s)
    mark_dirty(m, s)
    if st.node >= 0:
        leave(m, s)


@compiled
def take(m: Machine, t: int) -> None:
    """Moves the memory of a tensor's old state to it; the old state is evicted, or gone where nothing makes it."""
    s, old = m.tensors[t].storage, m.tensors[t].replaces
    st, before = m.storages[s], m.storages[old]
    st.block = before.block
    if st.block >= 0:
        m.blocks.blocks[st.block].owner = s
        note(m, state.EVENT_PLACE, s, m.blocks.blocks[st.block].start)
    before.block = -1
    m.tensors[t].takes = 0
    m.now[0].taken += 1
    forget(m, old)
    if stays(before):
        pin_descendants(m, old)
        before.gone = 1
    else:
        if m.now[0].cost == CLASSES or m.now[0].cost == NEIGHBOURS:
            join_neighbours(m, old)
        mark_dirty(m, old)
    note(m, state.EVENT_TAKE, old)


@compiled
def release_storage(m: Machine, s: int) -> None:
    """The program will not ask for a storage again."""
    st, now = m.storages[s], m.now[0]
    if not st.material or now.dealloc == NONE or st.locks > 0:
        return
    if now.dealloc == EAGER and not st.fixed and not st.pinned:
        now.eager += 1
        evict(m, s)
    elif not st.lent and not banish(m, s):
        defer_free(m, s)


@compiled
def push(m: Machine, t: int, repeated: int) -> None:
    """A tensor is to be made: its operands are accessed, and those that are there are locked."""
    now = m.now[0]
    f = m.frames[now.frames]
    c = m.calls[m.tensors[t].call]
    f.tensor, f.next, f.repeated, f.held = t, 0, repeated, now.held
    now.frames += 1
    for i in range(c.args):
        p = m.args[c.arg + i]
        s = m.tensors[p].storage
        if now.dealloc != BANISH or m.storages[s].refs > 0:
            m.storages[s].last = now.clock
        m.held[now.held + i] = m.tensors[p].defined
        if m.tensors[p].defined:
            lock(m, s)
    now.held += c.args


@compiled
def materialise(m: Machine, t: int, repeated: int) -> bool:
    """Makes a tensor, and before it whatever was evicted of what it is made of; whether that could be done."""
    now = m.now[0]
    base = now.frames
    push(m, t, repeated)
    while now.frames > base:
        f = m.frames[now.frames - 1]
        c = m.calls[m.tensors[f.tensor].call]
        waiting = -1
        while f.next < c.args and waiting < 0:
            p = m.args[c.arg + f.next]
            if m.held[f.held + f.next]:
                f.next += 1
            elif m.tensors[p].defined:
                lock(m, m.tensors[p].storage)
                f.next += 1
            else:
                waiting = p
        if waiting >= 0:
            call = m.tensors[waiting].call
            if call < 0 or m.storages[m.tensors[waiting].storage].gone:
                now.status, now.failed = state.LOST, max(call, 0)
                return False
            push(m, waiting, 1)
            continue
        if not compute(m, f.tensor, f.repeated):
            return False
        now.frames -= 1
        now.held = f.held
        for i in range(c.args):
            unlock_operand(m, m.tensors[m.args[c.arg + i]].storage, m.tensors[f.tensor].storage)
        if now.repeated_price > now.limit or now.recomputed > now.most:
            now.status, now.failed = state.THRASHED, m.tensors[f.tensor].call
            return False
    return True


@compiled
def is_spent(m: Machine, s: int) -> bool:
    """True if every value computed from a storage is in memory or freed for good."""
    for i in range(m.storages[s].down, m.storages[s].down + m.storages[s].downs):
        if m.down.call[i] > m.now[0].issued:
            break
        other = m.storages[m.down.storage[i]]
        if not other.material and not other.gone:
            return False
    return True


@compiled
def unlock_operand(m: Machine, s: int, made: int) -> None:
    """Ends the use of an operand of what was just made, and frees it where it waited for that."""
    st, now = m.storages[s], m.now[0]
    if not st.material:
        st.locks -= 1  # its memory was taken over
        return
    unlock(m, s)
    if st.refs > 0 or st.locks > 0 or st.lent:
        return
    if now.dealloc == BANISH:
        banish(m, s)
    elif now.dealloc == EAGER and stays(st):
        if not banish(m, s):
            defer_free(m, s)
    elif now.dealloc == EAGER and now.drops and s != made and is_spent(m, s):
        now.eager += 1
        evict(m, s)


@compiled
def issue(m: Machine, call: int) -> bool:
    """Runs a call for the first time."""
    now, c = m.now[0], m.calls[call]
    now.issued = call
    for t in range(c.out, c.out + c.outs):
        s = m.tensors[t].storage
        m.storages[s].refs += 1
        if not m.tensors[t].shared and (now.cost == CLASSES or now.cost == NEIGHBOURS):
            m.storages[s].node = new_node(m, 0.0)  # it stands beside its operands while they come back
        made_before = False
        for i in range(c.out, t):
            made_before = made_before or m.tensors[i].storage == s
        if not made_before:
            m.storages[s].cost += c.cost
    if not materialise(m, c.out, 0):
        return False
    for t in range(c.out, c.out + c.outs):
        m.storages[m.tensors[t].storage].last = now.clock
    if now.mode == SOFT:
        while now.memory > now.budget and evict_one(m):
            pass
    return True


@compiled
def begin_constant(m: Machine, t: int) -> bool:
    """A tensor that nobody computes is there."""
    now, s = m.now[0], m.tensors[t].storage
    st = m.storages[s]
    st.refs += 1
    now.needed, now.failed = st.bytes, -1
    if now.mode == COUNTED and not make_room(m, st.bytes):
        now.status = state.OUT_OF_MEMORY
        return False
    if (now.mode == HINT or now.mode == HARD) and not give_block(m, s):
        now.status = state.OUT_OF_MEMORY
        return False
    now.memory += st.bytes
    now.peak = max(now.peak, now.memory)
    st.material, m.tensors[t].defined, st.last = 1, 1, now.clock
    return True


@compiled
def keep(m: Machine, t: int) -> bool:
    """A tensor is there from now on."""
    if not m.tensors[t].defined:
        s = m.tensors[t].storage
        if m.tensors[t].call < 0 or m.storages[s].gone:
            m.now[0].status, m.now[0].failed = state.LOST, max(m.tensors[t].call, 0)
            return False
        if not materialise(m, t, 1):
            return False
    s = m.tensors[t].storage
    remove_candidate(m, s)
    m.storages[s].pinned = m.storages[s].kept = 1
    return True


@compiled
def advance(m: Machine, end: int) -> int:
    """Does the steps up to `end`, or fewer where one cannot be done; which is next."""
    now = m.now[0]
    now.status = state.RUNNING
    while now.step < end:
        what, which = m.steps[now.step, 0], m.steps[now.step, 1]
        done = True
        if what == state.RUN:
            done = issue(m, which)
        elif what == state.RELEASE:
            s = m.tensors[which].storage
            m.storages[s].refs -= 1
            if m.storages[s].refs == 0:
                release_storage(m, s)
        elif what == state.GET:
            m.storages[m.tensors[which].storage].refs += 1
        elif what == state.KEEP:
            done = keep(m, which)
        elif what == state.CONSTANT:
            done = begin_constant(m, which)
        if not done:
            return now.step
        now.step += 1
    if now.step == len(m.steps):
        now.status = state.DONE
    return now.step


def _entry(version: int) -> Any:
    @entered
    def run(m: Machine, end: int) -> int:
        """As `advance`, compiled once for all files of the room."""
        return advance(m, end) if version else -1

    return run


run = _entry(sources())
