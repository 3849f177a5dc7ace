"""Plans made by hand for traced steps: drop residuals, keep what crosses stages."""

from collections.abc import Iterable

from jaxckpt.ir import Decision, Graph, GraphPlan, Phase, Recompute, Save
from tests.residuals import residuals


def droppable(graph: Graph) -> list[int]:
    """Residuals that can be computed again."""
    return [r.value for r in residuals(graph) if not graph.ops[r.op].effects]


def plan_of(graph: Graph, *, drop: Iterable[int] = (), save: Iterable[int] = (), stages=(0,)) -> GraphPlan:
    decisions: dict[int, Decision] = {v: Recompute() for v in drop} | {v: Save() for v in save}
    return GraphPlan(fingerprint=graph.fingerprint, decisions=decisions, stages=tuple(stages))


def drop_all(graph: Graph, *, scopes: tuple[str, ...] = ()) -> GraphPlan:
    """Drops every residual of the given scopes (of all, without any) and saves what leaves them."""

    def index(op: int) -> int | None:
        path = graph.ops[op].scope.split("/")
        return next((i for i, scope in enumerate(scopes) if scope in path), None)

    inside = [op for op in graph.ops if op.phase is Phase.FORWARD and (index(op.id) is not None or not scopes)]
    values = [v for op in inside for v in op.writes]
    crossing = [
        v
        for v in values
        if any(
            graph.ops[r].phase is Phase.FORWARD and index(r) != index(graph.producer[v])  # type: ignore[arg-type]
            for r in graph.readers[v]
        )
    ]
    drop = set(values) & set(droppable(graph)) - set(crossing)
    first = {index(op.id): op.id for op in reversed(inside)}
    behind = max(op.id for op in inside) + 1
    return plan_of(graph, drop=drop, save=crossing if scopes else (), stages=sorted({0, *first.values(), behind}))
