"""Score of an evictable value: cost of recomputing it / (bytes gained * staleness).

One function for each word of `evictors`. c(t) is the price of the calls that make a storage's tensors, m(t) its bytes;
an evicted neighbour is a storage that a call of t read, or that was computed from t, and that is not in memory.

Sources: as in `evictors`. Complexity: a score looks at the neighbours; `EXACT` and `ANCESTORS` walk the evicted
neighbourhood again when something in it came or went, `REGENERATION` prices all storages once a search.
"""

from math import inf

from jaxckpt.dynamic.compiled import called, compiled
from jaxckpt.dynamic.evictors import Cost, Search, Size, Staleness
from jaxckpt.dynamic.pool import free_around
from jaxckpt.dynamic.state import Machine

ANCESTORS, EXACT, CLASSES = int(Cost.ANCESTORS), int(Cost.EXACT), int(Cost.CLASSES)
NEIGHBOURS, REGENERATION, LOCAL = int(Cost.NEIGHBOURS), int(Cost.REGENERATION), int(Cost.LOCAL)
WITH_FREE_NEIGHBOURS, BYTES = int(Size.WITH_FREE_NEIGHBOURS), int(Size.BYTES)
PAST, FUTURE = int(Staleness.PAST), int(Staleness.FUTURE)
WINDOW = int(Search.WINDOW)
MEBI = 2.0**20


@called
def score(m: Machine, s: int) -> float:
    """h(t): the less, the sooner it goes."""
    now = m.now[0]
    above = (cost(m, s) + now.offset) * now.repeat_factor ** m.storages[s].times
    gained = 1.0 if now.search == WINDOW else size(m, s)  # a window counts its bytes itself
    below = gained * (staleness(m, s) + now.offset)
    return above / below if below > 0 else inf


@compiled
def cost(m: Machine, s: int) -> float:
    """Cost of recomputing an evicted value."""
    now = m.now[0]
    own = m.storages[s].cost if now.includes_own else 0.0
    if now.cost == LOCAL:
        return own
    if now.cost == NEIGHBOURS or now.cost == CLASSES:
        return own + neighbours(m, s)
    if now.cost == EXACT or now.cost == ANCESTORS:
        return own + neighbourhood(m, s)
    if now.cost == REGENERATION:
        return (m.regen[0, s] * m.regen[1, s]) ** now.time_exponent * m.regen[2, s] ** now.memory_exponent
    return 1.0


@compiled
def size(m: Machine, s: int) -> float:
    """Gain of evicting a value: bytes; MiB with free neighbours, as DTE counts; or 1 where size does not matter."""
    kind = m.now[0].gain
    if kind == BYTES:
        return float(m.storages[s].bytes)
    if kind == WITH_FREE_NEIGHBOURS:
        block = m.storages[s].block
        free = free_around(m.blocks, block) if block >= 0 else 0
        return (m.storages[s].bytes + free) / MEBI
    return 1.0


@compiled
def staleness(m: Machine, s: int) -> float:
    """How little a value is needed."""
    now = m.now[0]
    if now.staleness == PAST:
        return (now.clock - m.storages[s].last) / now.clock_unit
    if now.staleness == FUTURE:
        return next_use(m, s)
    return 1.0


@compiled
def next_use(m: Machine, s: int) -> float:
    """Calls until the next one that reads the storage; all calls where there is none."""
    st = m.storages[s]
    if st.downs == st.all_downs:
        return float(len(m.calls))
    return float(m.near_call[st.down + st.downs] - m.now[0].issued)


@compiled
def neighbours(m: Machine, s: int) -> float:
    """The sum over evicted neighbours, each at its `weight`."""
    st, total = m.storages[s], 0.0
    m.now[0].walk += 1
    for i in range(st.up, st.up + st.ups):
        total += weight(m, m.near[i])
    for i in range(st.down, st.down + st.downs):
        total += weight(m, m.near[i])
    return total


@compiled
def weight(m: Machine, s: int) -> float:
    """An evicted storage's own cost or its class's, whichever is more; with `CLASSES` each class once a walk."""
    if m.storages[s].class_ < 0:
        return 0.0
    class_ = m.classes[m.storages[s].class_]
    if m.now[0].cost == NEIGHBOURS:
        return max(class_.value, m.storages[s].cost)
    if class_.mark == m.now[0].walk:
        return 0.0
    class_.mark = m.now[0].walk
    return class_.value


@compiled
def neighbourhood(m: Machine, s: int) -> float:
    """The cost of e*(t), kept until something in it comes or goes."""
    st = m.storages
    if st[s].dirty:
        st[s].memo = walk(m, s, True, False)
        if m.now[0].cost == EXACT:
            st[s].memo += walk(m, s, False, False)
        st[s].dirty = 0
    return st[s].memo


@compiled
def walk(m: Machine, s: int, upward: bool, mark: bool) -> float:
    """Cost of the evicted storages reached through evicted ones; with `mark`, marks as dirty where the walk ends."""
    st, now, total = m.storages, m.now[0], 0.0
    now.walk += 1
    st[s].mark = now.walk
    m.walk[0], depth = s, 1
    while depth:
        depth -= 1
        here = st[m.walk[depth]]
        first = here.up if upward else here.down
        for i in range(first, first + (here.ups if upward else here.downs)):
            other = m.near[i]
            if st[other].mark == now.walk or st[other].gone:
                continue
            st[other].mark = now.walk
            if st[other].material:
                if mark:
                    st[other].dirty = 1
            else:
                total += st[other].cost
                m.walk[depth] = other
                depth += 1
    return total


@compiled
def mark_dirty(m: Machine, s: int) -> None:
    """Says that a storage came or went to all whose evicted neighbourhood it is in."""
    if m.now[0].cost == EXACT or m.now[0].cost == ANCESTORS:
        m.storages[s].dirty = 1
        walk(m, s, True, True)
        walk(m, s, False, True)


@compiled
def regenerate(m: Machine) -> None:
    """Prices all storages for DTE's planner: how often each would run again, how long and in how many bytes.

    F = 1 + F of what is computed from it and not in memory: evicted, freed, or, as the planner has the entire graph,
    not made so far; B = its own time + B of operands that are not in memory; its bytes + those of such operands.
    Storages are numbered in the order of their first call.
    """
    st = m.storages
    for s in range(len(st)):
        time, size = st[s].cost, float(st[s].bytes)
        for i in range(st[s].up, st[s].up + st[s].ups):
            other = m.near[i]
            if other < s and not st[other].material:
                time += m.regen[1, other]
                size += m.regen[2, other]
        m.regen[1, s], m.regen[2, s] = time, size
    for s in range(len(st) - 1, -1, -1):
        runs = 1.0
        for i in range(st[s].down, st[s].down + st[s].all_downs):
            other = m.near[i]
            if other > s and not st[other].material:
                runs += m.regen[0, other]
        m.regen[0, s] = runs
