"""The residuals of a graph: forward values that the backward reads."""

from dataclasses import dataclass

from jaxckpt.ir import Graph, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """A forward value, the op that writes it, and the ops of the backward and the update that read it, in order."""

    value: int
    op: int
    readers: tuple[int, ...]


def residuals(graph: Graph) -> tuple[Residual, ...]:
    """All residuals of a graph, in the order of their ops; arguments, in memory under any plan, are none."""
    found = []
    for op in graph.ops:
        if op.phase is not Phase.FORWARD:
            continue
        for value in op.writes:
            readers = tuple(r for r in graph.readers[value] if graph.ops[r].phase is not Phase.FORWARD)
            if readers:
                found.append(Residual(value=value, op=op.id, readers=readers))
    return tuple(found)
