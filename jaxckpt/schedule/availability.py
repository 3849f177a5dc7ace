"""Availability of values after the forward pass: which are in memory there, and which have to be recomputed.

Read after `argument_derived`; `recomputation` asks.
"""

from functools import cache

from jaxckpt.ir.decision import Recompute
from jaxckpt.ir.graph import Graph, Phase
from jaxckpt.ir.plan import GraphPlan
from jaxckpt.schedule.argument_derived import is_broadcast


class Availability:
    """Availability of every value, by the loop in whose body it is read.

    Attributes:
      dropped: Values that are recomputed by decision. A slice of a scanned array never is: the backward loop slices the
        array itself. Nor is the index of a cond.
    """

    def __init__(self, graph: Graph, plan: GraphPlan):
        self._graph = graph
        dropped = {v for v, decision in plan.decisions.items() if isinstance(decision, Recompute)}
        self.dropped = frozenset(dropped - graph.slices - graph.indices)
        self._kept = (graph.available | plan.decisions.keys()) - self.dropped
        self._loop_invariants: dict[int, frozenset[int]] = {}
        self.is_broadcast = cache(lambda value: is_broadcast(graph, value))
        """True if a value is recomputed in the very body that reads it: it is much larger than its arguments."""

    def is_available(self, value: int, loop: int | None) -> bool:
        """True if an op in the body of a loop can read a value that is not recomputed there."""
        if not self._graph.loops:
            return value in self._kept
        path = self._graph.path(loop)
        if value in self._graph.slices:
            return self._graph.loop_of[value] in path
        return value in self._kept or any(value in self.loop_invariants(around) for around in path)

    def loop_invariants(self, loop: int) -> frozenset[int]:
        """Values from outside of a loop that forward ops of its body read: in memory as long as the loop runs."""
        if loop not in self._loop_invariants:
            graph, depth = self._graph, len(self._graph.path(loop))
            forward = (op for op in graph.ops if op.phase is Phase.FORWARD and loop in graph.path(op.loop))
            self._loop_invariants[loop] = frozenset(v for op in forward for v in op.reads if self.depth(v) < depth)
        return self._loop_invariants[loop]

    def depth(self, value: int) -> int:
        """Number of open loops around a value."""
        return len(self._graph.path(self._graph.loop_of[value]))

    def body_for(self, value: int, loop: int | None) -> int | None:
        """The loop in whose body a value is recomputed for a reader in the body of `loop`."""
        if loop is None or self.is_broadcast(value):
            return loop
        return (None, *self._graph.path(loop))[self.depth(value)]
