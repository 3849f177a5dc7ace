"""Connected components of a bipartite graph by union-find (disjoint sets)."""

from collections.abc import Iterable


def connected_components(edges: Iterable[tuple[int, int]]) -> tuple[dict[int, int], dict[int, int]]:
    """For each left and for each right node of some edges the label of its component, which is a left node."""
    parent: dict[int, int] = {}
    first: dict[int, int] = {}

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    for left, right in edges:
        parent.setdefault(left, left)
        other = first.setdefault(right, left)
        if other != left:
            parent[root(left)] = root(other)
    return {left: root(left) for left in parent}, {right: root(left) for right, left in first.items()}
