"""Connected components of a bipartite graph by union-find (disjoint sets)."""

from collections.abc import Iterable


def connected_components(edges: Iterable[tuple[int, int]]) -> tuple[dict[int, int], dict[int, int]]:
    """Labels the components of a bipartite graph.

    Args:
      edges: Pairs of a left and a right node.

    Returns:
      For each left and for each right node that has an edge the label of its component, which is a left node.
    """
    parent: dict[int, int] = {}
    first: dict[int, int] = {}

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    for left, right in edges:
        parent.setdefault(left, left)
        parent[root(left)] = root(first.setdefault(right, left))
    return {left: root(left) for left in parent}, {right: root(left) for right, left in first.items()}
