"""Runs a program under a budget, one statement after the other, knowing only what was issued so far.

To run a call its operands are locked and brought back where they were evicted, each after its own operands; then room
is made for its results, evicting by the rule; then the clock goes on by its price. Operands are unlocked in order and
become candidates behind the results. What happens at a release, and what room means, is `memory`'s to say.

A recomputed call makes all its results; those that are still there are made twice and the copy is dropped. A view has
no memory: it comes back by its own call over its source. Calls that wait for their operands are on a stack of the
engine's own, so a chain of any length can come back.

Read after `state` and `eviction`. Source: Kirisame et al., ICLR 2021, section 4 and appendix C; the
order of events is that of its simulator.
"""

from typing import Any

from jaxckpt.dynamic import eviction, state
from jaxckpt.dynamic.compiled import compiled, entered, sources
from jaxckpt.dynamic.evictors import Cost, Search
from jaxckpt.dynamic.memory import Dealloc, Mode
from jaxckpt.dynamic.pool import allocate, largest_free
from jaxckpt.dynamic.score import mark_dirty
from jaxckpt.dynamic.state import Machine
from jaxckpt.dynamic.union_find import leave, make_class

COUNTED, SOFT, HINT, HARD = int(Mode.COUNTED), int(Mode.SOFT), int(Mode.HINT), int(Mode.HARD)
EAGER, BANISH, NONE = int(Dealloc.EAGER), int(Dealloc.BANISH), int(Dealloc.NONE)
CLASSES, NEIGHBOURS, WINDOW = int(Cost.CLASSES), int(Cost.NEIGHBOURS), int(Search.WINDOW)


@compiled
def make_room(m: Machine, need: int) -> bool:
    """Evicts until `need` more bytes fit the budget; True if they do."""
    now = m.now[0]
    if now.memory + need > now.budget:
        eviction.free_deferred(m)
    while now.memory + need > now.budget:
        if not eviction.evict_one(m):
            return False
    return True


@compiled
def give_block(m: Machine, s: int) -> bool:
    """Gives a storage an address, evicting until there is one; True on success."""
    now, st = m.now[0], m.storages[s]
    if st.bytes == 0:
        return True
    block = allocate(m.blocks, s, st.bytes, st.dense != 0)
    if block < 0 and now.waiting:
        eviction.free_deferred(m)
        block = allocate(m.blocks, s, st.bytes, st.dense != 0)
    if block < 0:
        area = m.blocks.area[0]
        now.free_share += area.free_bytes / area.bytes
        now.largest_free_share += largest_free(m.blocks) / area.bytes
        now.refused += 1
        eviction.note(m, state.EVENT_REFUSE, s, area.free_bytes)
    while block < 0:
        if now.search == WINDOW:
            if not eviction.evict_window(m, st.bytes):
                return False
        elif not eviction.evict_one(m):
            return False
        block = allocate(m.blocks, s, st.bytes, st.dense != 0)
    st.block = block
    eviction.note(m, state.EVENT_PLACE, s, m.blocks.blocks[block].start)
    return True


@compiled
def may_take(m: Machine, t: int) -> bool:
    """True if a result may take over the memory of the tensor whose new state it is."""
    old = m.tensors[t].replaces
    if old < 0 or not m.now[0].in_place:
        return False
    st, new = m.storages[old], m.storages[m.tensors[t].storage]
    if new.material or st.bytes == 0 or st.bytes != new.bytes or not is_last_use(st):
        return False
    return not (stays(st) and eviction.is_needed(m, old))


@compiled
def is_last_use(storage: Any) -> bool:
    """True if the call that is running has the only use of a storage in memory."""
    held = storage.kept != 0 or storage.lent != 0
    return storage.material != 0 and storage.locks == 1 and storage.refs == 1 and not held


@compiled
def stays(storage: Any) -> bool:
    """True if nothing could bring a storage back."""
    return storage.fixed or storage.pinned


@compiled
def room_for_results(m: Machine, call: int) -> bool:
    """Reserves memory for the results of a call that are not in memory; True on success."""
    now, c = m.now[0], m.calls[call]
    need = 0
    for t in range(c.out, c.out + c.outs):
        need += bytes_for(m, t)
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
    now.peak_bytes = max(now.peak_bytes, now.memory)
    return True


@compiled
def bytes_for(m: Machine, t: int) -> int:
    """Bytes that a result needs: none where it is a view or there already, or takes its old state's memory over."""
    result = m.tensors[t]
    result.takes = may_take(m, t)
    if result.takes:
        if stays(m.storages[result.replaces]):  # room must not be made of values that only the old state brings back
            eviction.pin_descendants(m, result.replaces)
        return 0
    if result.shared or (result.defined and m.now[0].mode != COUNTED):
        return 0
    return m.storages[result.storage].bytes


@compiled
def hold_results(m: Machine, call: int, held: bool) -> None:
    """Locks the results of a call that are in memory, so that making room for the others cannot evict them."""
    c = m.calls[call]
    if m.now[0].mode == COUNTED or c.outs == 1:
        return
    for t in range(c.out, c.out + c.outs):
        if m.tensors[t].defined and not m.tensors[t].shared:
            if held:
                eviction.lock(m, m.tensors[t].storage)
            else:
                eviction.unlock(m, m.tensors[t].storage)


@compiled
def blocks_for_results(m: Machine, call: int) -> bool:
    """Gives addresses to the results of a call that are not in memory; True on success."""
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
    """Runs the call that writes a tensor, after which all its results are in memory; True if memory was found."""
    now, call = m.now[0], m.tensors[t].call
    if not room_for_results(m, call):
        now.status = state.OUT_OF_MEMORY
        return False
    c = m.calls[call]
    eviction.note(m, state.EVENT_RUN, call)
    now.clock += c.cost
    now.runs += 1
    if repeated:
        now.recompute_price += c.cost
        now.recomputations += 1
    else:
        now.base_price += c.cost
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
    """Marks a result as in memory and its storage as a candidate; a second copy is dropped."""
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
    eviction.add_candidate(m, s)
    mark_dirty(m, s)
    if st.class_ >= 0:
        leave(m, s)


@compiled
def take(m: Machine, t: int) -> None:
    """Moves the memory of a tensor's old state to it; the old state is evicted, or gone where nothing makes it."""
    s, old = m.tensors[t].storage, m.tensors[t].replaces
    st, before = m.storages[s], m.storages[old]
    st.block = before.block
    if st.block >= 0:
        m.blocks.blocks[st.block].owner = s
        eviction.note(m, state.EVENT_PLACE, s, m.blocks.blocks[st.block].start)
    before.block = -1
    m.tensors[t].takes = 0
    m.now[0].taken_over += 1
    eviction.forget(m, old)
    if stays(before):
        eviction.pin_descendants(m, old)
        before.gone = 1
    else:
        eviction.notice_evicted(m, old)
    eviction.note(m, state.EVENT_TAKE, old)


@compiled
def release_storage(m: Machine, s: int) -> None:
    """The program will not ask for a storage again."""
    st, now = m.storages[s], m.now[0]
    if not st.material or now.dealloc == NONE or st.locks > 0:
        return
    if now.dealloc == EAGER and not st.fixed and not st.pinned:
        now.eager_evictions += 1
        eviction.evict(m, s)
    elif not st.lent and not eviction.banish(m, s):
        eviction.defer_free(m, s)


@compiled
def push(m: Machine, t: int, repeated: int) -> None:
    """Begins to compute a tensor: its operands are accessed, and those in memory are locked."""
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
            eviction.lock(m, s)
    now.held += c.args


@compiled
def materialise(m: Machine, t: int, repeated: int) -> bool:
    """Computes a tensor, after recomputing its evicted operands; True on success."""
    now = m.now[0]
    base = now.frames
    push(m, t, repeated)
    while now.frames > base:
        f = m.frames[now.frames - 1]
        c = m.calls[m.tensors[f.tensor].call]
        missing = missing_operand(m, f, c)
        if missing >= 0:
            if stop_if_lost(m, missing):
                return False
            push(m, missing, 1)
            continue
        if not compute(m, f.tensor, f.repeated):
            return False
        now.frames -= 1
        now.held = f.held
        for i in range(c.args):
            unlock_operand(m, m.tensors[m.args[c.arg + i]].storage, m.tensors[f.tensor].storage)
        if now.recompute_price > now.most_recompute_price or now.recomputations > now.most_recomputations:
            now.status, now.failed = state.THRASHED, m.tensors[f.tensor].call
            return False
    return True


@compiled
def missing_operand(m: Machine, f: Any, c: Any) -> int:
    """Locks the operands of a frame's call in their order, up to the first that is not in memory: that, or -1."""
    while f.next < c.args:
        p = m.args[c.arg + f.next]
        if not m.held[f.held + f.next]:
            if not m.tensors[p].defined:
                return p
            eviction.lock(m, m.tensors[p].storage)
        f.next += 1
    return -1


@compiled
def stop_if_lost(m: Machine, t: int) -> bool:
    """Ends the run if nothing can bring a tensor back; True if so."""
    call = m.tensors[t].call
    if call >= 0 and not m.storages[m.tensors[t].storage].gone:
        return False
    m.now[0].status, m.now[0].failed = state.LOST, max(call, 0)
    return True


@compiled
def is_spent(m: Machine, s: int) -> bool:
    """True if every value computed from a storage is in memory or freed for good."""
    for i in range(m.storages[s].down, m.storages[s].down + m.storages[s].downs):
        other = m.storages[m.near[i]]
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
    # All that is said of an operand when nobody uses it any more: one branch for each treatment of a release.
    eviction.unlock(m, s)
    if eviction.is_in_use(st):
        return
    if now.dealloc == BANISH:
        eviction.banish(m, s)
    elif now.dealloc == EAGER and stays(st):
        if not eviction.banish(m, s):
            eviction.defer_free(m, s)
    elif now.dealloc == EAGER and now.drops_recomputed and s != made and is_spent(m, s):
        now.eager_evictions += 1
        eviction.evict(m, s)


@compiled
def issue(m: Machine, call: int) -> bool:
    """Runs a call for the first time."""
    # Three loops over operands and results, in the order in which DTR's simulator goes through them.
    now, c = m.now[0], m.calls[call]
    now.issued = call
    for i in range(c.arg, c.arg + c.args):
        show_links(m, m.tensors[m.args[i]].storage)
    for t in range(c.out, c.out + c.outs):
        s = m.tensors[t].storage
        show_links(m, s)
        m.storages[s].refs += 1
        if not m.tensors[t].shared and (now.cost == CLASSES or now.cost == NEIGHBOURS):
            make_class(m, s, 0.0)  # it stands beside its operands while they come back
        if m.tensors[t].first:
            m.storages[s].cost += c.cost
    if not materialise(m, c.out, 0):
        return False
    for t in range(c.out, c.out + c.outs):
        m.storages[m.tensors[t].storage].last = now.clock
    if now.mode == SOFT:
        while now.memory > now.budget and eviction.evict_one(m):
            pass
    return True


@compiled
def show_links(m: Machine, s: int) -> None:
    """Shows a storage the neighbours that the issued call has linked it to."""
    st = m.storages[s]
    while st.ups < st.all_ups and m.near_call[st.up + st.ups] <= m.now[0].issued:
        st.ups += 1
    while st.downs < st.all_downs and m.near_call[st.down + st.downs] <= m.now[0].issued:
        st.downs += 1


@compiled
def begin_constant(m: Machine, t: int) -> bool:
    """Puts a tensor that no call computes into memory; True on success."""
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
    now.peak_bytes = max(now.peak_bytes, now.memory)
    st.material, m.tensors[t].defined, st.last = 1, 1, now.clock
    return True


@compiled
def keep(m: Machine, t: int) -> bool:
    """Keeps a tensor in memory to the end, recomputing it if it was evicted; True on success."""
    if not m.tensors[t].defined and (stop_if_lost(m, t) or not materialise(m, t, 1)):
        return False
    s = m.tensors[t].storage
    eviction.remove_candidate(m, s)
    m.storages[s].pinned = m.storages[s].kept = 1
    return True


@compiled
def advance(m: Machine, end: int) -> int:
    """Carries out the statements up to `end`, or up to one that fails; the number of the next one."""
    now = m.now[0]
    now.status = state.RUNNING
    while now.statement < end:
        what, which = m.statements[now.statement, 0], m.statements[now.statement, 1]
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
            return now.statement
        now.statement += 1
    if now.statement == len(m.statements):
        now.status = state.DONE
    return now.statement


def _entry(version: int) -> Any:
    @entered
    def run(m: Machine, end: int) -> int:
        """`advance`, whose machine code numba keeps on disk until a file of `jaxckpt.dynamic` changes."""
        return advance(m, end) if version else -1

    return run


run = _entry(sources())
