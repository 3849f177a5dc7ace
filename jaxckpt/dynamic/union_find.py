"""Evicted values that touch each other, kept as disjoint classes whose value is the cost of all their members.

When a value is evicted it becomes a class of its own and joins the classes of its evicted neighbours. A recomputed
value leaves its class, and its cost is subtracted. The class is not split, although its members may have been connected
only through that value: this is the approximation h_DTR^eq, which DTE and Coop use too.

Members of a class are a ring, and each knows its class's number; of two classes the smaller one is renumbered (quick
find). So members can leave, which a forest of parents does not allow.

Source: Kirisame et al., ICLR 2021, appendix C.2 (splitting approximation). Complexity: O(log n) for each join that a
member lives through, O(1) for all else.
"""

from jaxckpt.dynamic.compiled import compiled
from jaxckpt.dynamic.state import Machine


@compiled
def make_class(m: Machine, s: int, value: float) -> None:
    """Makes a storage that is in no class one of its own."""
    now, st = m.now[0], m.storages[s]
    st.class_, st.next, st.before = m.classes[now.class_count].spare, s, s
    now.class_count += 1
    made = m.classes[st.class_]
    made.mark, made.value, made.members = 0, value, 1


@compiled
def join_neighbours(m: Machine, s: int) -> None:
    """Makes an evicted storage a class, and one with the classes of its evicted neighbours."""
    st = m.storages[s]
    make_class(m, s, st.cost)
    for i in range(st.up, st.up + st.ups):
        join(m, s, m.near[i])
    for i in range(st.down, st.down + st.downs):
        join(m, s, m.near[i])


@compiled
def join(m: Machine, s: int, other: int) -> None:
    """Makes one class of two storages' classes, where the other one is in any."""
    st, classes = m.storages, m.classes
    if st[other].class_ < 0 or st[s].class_ == st[other].class_:
        return
    if classes[st[s].class_].members > classes[st[other].class_].members:
        s, other = other, s
    small, large = st[s].class_, st[other].class_
    member = s
    for _ in range(classes[small].members):
        st[member].class_ = large
        member = st[member].next
    after, after_other = st[s].next, st[other].next
    st[s].next, st[after_other].before = after_other, s
    st[other].next, st[after].before = after, other
    classes[large].value += classes[small].value
    classes[large].members += classes[small].members
    drop_class(m, small)


@compiled
def leave(m: Machine, s: int) -> None:
    """Takes a storage that came back off its class."""
    st = m.storages[s]
    left = m.classes[st.class_]
    left.value -= st.cost
    left.members -= 1
    m.storages[st.before].next, m.storages[st.next].before = st.next, st.before
    if left.members == 0:
        drop_class(m, st.class_)
    st.class_ = -1


@compiled
def drop_class(m: Machine, number: int) -> None:
    """Makes the number of a class spare."""
    m.now[0].class_count -= 1
    m.classes[m.now[0].class_count].spare = number
