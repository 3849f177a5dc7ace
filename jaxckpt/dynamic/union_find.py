"""Evicted values that touch each other, kept as union-find classes whose value is the cost of all their members.

When a value is evicted it becomes a class of its own and joins the classes of its evicted neighbours. When it comes
back its cost is taken off its class and it leaves; the class is never split, so what it alone held together stays
together. That is the approximation h_DTR^eq, and what DTE and Coop use.

Source: Kirisame et al., ICLR 2021, appendix C.2 (splitting approximation). Complexity: nearly O(1) a neighbour.
"""

from typing import Any

from jaxckpt.dynamic.compiled import compiled
from jaxckpt.dynamic.state import Machine


@compiled
def find(nodes: Any, node: int) -> int:
    """The root of a node's class."""
    root = node
    while nodes[root].parent >= 0:
        root = nodes[root].parent
    while nodes[node].parent >= 0:
        nodes[node].parent, node = root, nodes[node].parent
    return root


@compiled
def new_node(m: Machine, value: float) -> int:
    """A class of one."""
    now = m.now[0]
    if now.nodes == len(m.nodes):
        compact(m)
    node = now.nodes
    now.nodes += 1
    m.nodes[node].parent = -1
    m.nodes[node].mark = 0
    m.nodes[node].value = value
    return node


@compiled
def compact(m: Machine) -> None:
    """Forgets nodes that no storage stands for: one node is left for each storage, the first of a class its root."""
    nodes, count = m.nodes, 0
    for s in range(len(m.storages)):
        if m.storages[s].node >= 0:
            m.walk[count] = find(nodes, m.storages[s].node)
            count += 1
    for i in range(count):  # by now no mark is in use
        nodes[m.walk[i]].mark = -1
    made = 0
    values = m.regen[0]
    roots = m.window[0]
    for i in range(count):
        root = m.walk[i]
        if nodes[root].mark < 0:
            nodes[root].mark = made
            roots[made] = i
            values[made] = nodes[root].value
            made += 1
        m.numbers[i] = nodes[root].mark
    made = 0
    for s in range(len(m.storages)):
        if m.storages[s].node >= 0:
            root = int(roots[m.numbers[made]])
            m.storages[s].node = made
            nodes[made].parent = -1 if root == made else root
            nodes[made].mark = 0
            nodes[made].value = values[m.numbers[made]]
            made += 1
    m.now[0].nodes = made


@compiled
def join_neighbours(m: Machine, s: int) -> None:
    """Makes an evicted storage a class, and one with the classes of its evicted neighbours."""
    st, now = m.storages, m.now[0]
    st[s].node = new_node(m, st[s].cost)
    for i in range(st[s].up, st[s].up + st[s].ups):
        if m.up.call[i] <= now.issued:
            join(m, s, m.up.storage[i])
    for i in range(st[s].down, st[s].down + st[s].downs):
        if m.down.call[i] > now.issued:
            break
        join(m, s, m.down.storage[i])


@compiled
def join(m: Machine, s: int, other: int) -> None:
    """Makes one class of two storages' classes, where the other one is in any."""
    nodes = m.nodes
    if m.storages[other].node < 0:
        return
    a, b = find(nodes, m.storages[s].node), find(nodes, m.storages[other].node)
    if a != b:
        nodes[a].parent = b
        nodes[b].value += nodes[a].value


@compiled
def leave(m: Machine, s: int) -> None:
    """Takes a storage that came back off its class."""
    root = find(m.nodes, m.storages[s].node)
    m.nodes[root].value -= m.storages[s].cost
    m.storages[s].node = -1
