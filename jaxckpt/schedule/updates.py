"""Optimiser updates that run before the backward is over, as soon as their gradients are finished.

XLA may put all updates at the end of a step. The gradients are then in memory until there: in a transformer with
experts 768 MiB of 1,627 at the peak. What passes a barrier is computed before what starts behind it, so new parameters
pass the barriers of stages and of loads. They take no memory of their own: the results of a step have theirs from the
start, that of the old parameters where these are donated.

A load waits for what the backward has finished (rule 2 of `transfers`). A gradient that passes the load's barrier is in
memory until behind it, in float32 where the update reads it so, since the barrier keeps its cast from fusing with the
update; and XLA's latency-hiding scheduler runs the update wherever a copy is to be hidden. A decoder of eight wide
layers that offloads 8.6 GiB took 32.5 GiB with the gradients, and takes 29.5 with the parameters (28.8 predicted for
both).

Read after `steps`. Complexity: linear in the ops of the update.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from math import inf

from jaxckpt.ir import Graph
from jaxckpt.schedule.steps import Run, StepWriter

LARGE_BYTES = 2**20
"""Updates of smaller results run at the end, as written: XLA updates many small parameters in one kernel."""


class EarlyUpdates:
    """The ops of the update that can run before the backward is over; the same for all plans of a graph.

    Left out are ops of loops, ops that read residuals, which may be recomputed or on the host, and those behind them.

    Attributes:
      after: For each op of the update the backward op behind which it can run; -1 if it reads no gradient, infinity if
        it is left out.
      due: The updates that can run early, each after the backward op behind which it runs, in ascending order. An
        update that reads no gradient runs with the first update that needs its results.
      due_of_large_results: Those of `due` that large results of the step are computed by.
    """

    def __init__(self, graph: Graph):
        self._graph = graph
        self.after: dict[int, float] = {}
        for number in sorted(graph.updates):
            op = graph.ops[number]
            can_move = op.loop is None and not op.effects
            self.after[number] = max(map(self._available, op.reads), default=-1.0) if can_move else inf
        large = (graph.producer[v] for v in graph.outputs if graph.values[v].size_bytes >= LARGE_BYTES)
        of_large_results = self.with_needed(op for op in large if op is not None)
        self.due = tuple(self._due())
        self.due_of_large_results = tuple(each for each in self.due if each[1] in of_large_results)

    def _due(self) -> Iterator[tuple[float, int]]:
        found: set[int] = set()
        for after, number in sorted((after, number) for number, after in self.after.items() if 0 <= after < inf):
            needed = self.with_needed([number], known=found)
            found |= needed
            yield from ((after, op) for op in sorted(needed))

    def _available(self, value: int) -> float:
        graph, producer = self._graph, self._graph.producer[value]
        if producer is None:
            return -1.0
        if value in graph.read_after_forward or graph.ops[producer].loop is not None:
            return inf
        return self.after.get(producer, float(producer))

    def with_needed(self, ops: Iterable[int], *, known: Collection[int] = ()) -> frozenset[int]:
        """Those of some ops that are updates, with the updates that they need, but for `known` ones and their needs."""
        found: set[int] = set()
        pending = list(ops)
        while pending:
            op = pending.pop()
            if op in self.after and op not in found and op not in known:
                found.add(op)
                producers = (self._graph.producer[v] for v in self._graph.ops[op].reads)
                pending.extend(producer for producer in producers if producer is not None)
        return frozenset(found)


class UpdateRunner:
    """Runs updates of one schedule early.

    Attributes:
      done: Ops of updates that ran.
      held: Ops that run only when they are named: what they read is in host memory until then.
    """

    def __init__(self, graph: Graph, writer: StepWriter):
        self.done: set[int] = set()
        self.held: set[int] = set()
        self._graph, self._writer = graph, writer
        self._passing: tuple[list[int], list[int]] = [], []
        """Values that `run` wrote before the last call of `run_before`, and since."""
        self._seen = 0
        """How many updates of the ascending list were due at the barriers before."""

    def run_before(self, reader: int, *, only_large: bool = False) -> list[int]:
        """Runs the updates whose gradients are finished before an op; returns values that pass the barrier there.

        They are the values that these updates write, and those that `run` wrote before the barrier before: what it
        wrote since may still be on its way to the host.

        `only_large` leaves updates with small results at the end: their gradients pass barriers (rule 9), and would not
        be read behind them.
        """
        updates = self._graph.once(EarlyUpdates)
        due = updates.due_of_large_results if only_large else updates.due
        begin, self._seen = self._seen, max(self._seen, bisect_left(due, (reader, -1)))
        written, self._passing = self._passing[0], (self._passing[1], [])
        return [*written, *self._run({op for _, op in due[begin : self._seen]} - self.held, reader)]

    def run(self, ops: Iterable[int], reader: int) -> None:
        """Runs some updates before an op, with those that they need."""
        self._passing[1].extend(self._run(self._graph.once(EarlyUpdates).with_needed(ops), reader))

    def _run(self, due: Iterable[int], reader: int) -> list[int]:
        graph, writer = self._graph, self._writer
        written: list[int] = []
        for op in map(graph.ops.__getitem__, sorted(set(due) - self.done)):
            if op.id >= reader or op.id in self.held:  # the others ran in their place
                writer.steps.append(Run(op=op.id, reads=tuple(writer.current[v] for v in op.reads), writes=op.writes))
                self.done.add(op.id)
                written.extend(op.writes)
        return written
