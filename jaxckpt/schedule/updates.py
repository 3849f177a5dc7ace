"""Optimiser updates that run before the backward is over, as soon as their gradients are finished.

XLA may put all updates at the end of a step. The gradients are then in memory until there: in a transformer with
experts 768 MiB of 1,627 at the peak. What passes a barrier is computed before what starts behind it, so new parameters
pass the barriers of stages and of loads. They take no memory of their own: the results of a step have theirs from the
start, that of the old parameters where these are donated.

Where the backward reads a parameter behind its gradient, the update waits for that: a compiler that runs the update in
place first copies the parameter. So the gradient passes a barrier with what the backward made of the parameter. Not of
a parameter that passes the barrier of a stage (see `passing`): its copy is short, and the gradient takes as much.
A plan of an LSTM took 852.5 MiB, and takes 833.0 (830.5 predicted for both).

A load waits for what the backward has finished (rule 2 of `transfers`). A gradient that passes the load's barrier is in
memory until behind it, and XLA's latency-hiding scheduler runs the update wherever a copy is to be hidden. A decoder of
eight wide layers that offloads 8.6 GiB took 32.5 GiB with the gradients in float32, and takes 29.5 with the parameters
(28.8 predicted for both).

Read after `backward_barriers`. Complexity: linear in the ops of the update.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from math import inf

from jaxckpt.ir import Graph, Phase
from jaxckpt.schedule.backward_barriers import BackwardBarriers
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
      read_by_backward: For each of these updates the parameters that it reads and the backward reads itself, each with
        the last op of the backward that does.
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
        self.read_by_backward = {op: read for _, op in self.due if (read := dict(self._read_by_backward(op)))}

    def _read_by_backward(self, update: int) -> Iterator[tuple[int, int]]:
        graph = self._graph
        for parameter in graph.donated.intersection(graph.ops[update].reads):
            readers = [op for op in map(graph.ops.__getitem__, graph.readers[parameter]) if op.phase is Phase.BACKWARD]
            if readers and all(op.loop is None for op in readers):
                yield parameter, readers[-1].id

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

    def __init__(self, graph: Graph, writer: StepWriter, barriers: BackwardBarriers):
        self.done: set[int] = set()
        self.held: set[int] = set()
        self._graph, self._writer, self._barriers = graph, writer, barriers
        self._passing: tuple[list[int], list[int]] = [], []
        """Values that `run` wrote before the last call of `run_before`, and since."""
        self._seen = 0
        """How many updates of the ascending list were due at the barriers before."""
        self._waiting: set[int] = set()
        """Those of them that wait for the backward to read a parameter."""

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
        ready = {op for _, op in due[begin : self._seen]}.union(self._waiting) - self.held - self.done
        self._waiting = self._behind({op for op in ready if any(map(reader.__le__, self._last_reads(op)))}, ready)
        ready -= self._waiting
        self._order_behind_reads(ready, reader)
        return [*written, *self._run(ready, reader)]

    def _last_reads(self, update: int) -> list[int]:
        """The ops of the backward that an update waits for: the last readers of parameters that pass no barrier."""
        read = self._graph.once(EarlyUpdates).read_by_backward.get(update, {})
        return [op for parameter, op in read.items() if parameter not in self._barriers.weights]

    def _behind(self, ops: set[int], among: Collection[int]) -> set[int]:
        """Some updates with those of others that read what they write."""
        found, graph = set(ops), self._graph
        for op in sorted(among) if ops else ():
            if any(graph.producer[v] in found for v in graph.ops[op].reads):
                found.add(op)
        return found

    def _order_behind_reads(self, ready: Collection[int], reader: int) -> None:
        """Passes gradients through a barrier with what the backward made of the parameters, where that is still read.

        A compiler drops operands of a barrier that nobody reads behind it.
        """
        graph = self._graph
        waiting = {op: self._last_reads(op) for op in ready}
        made = {v for ops in waiting.values() for op in ops for v in graph.ops[op].writes}
        made = {v for v in made if any(op >= reader for op in graph.readers[v])}
        needed = graph.once(EarlyUpdates).with_needed((op for op, ops in waiting.items() if ops), known=self.done)
        gradients = {v for op in needed for v in graph.ops[op].reads if self._is_gradient(v)}
        if made and gradients:
            self._barriers.pass_on((), sorted(made | gradients), reader=reader, why="recompute")

    def _is_gradient(self, value: int) -> bool:
        producer = self._graph.producer[value]
        return producer is not None and self._graph.ops[producer].phase is Phase.BACKWARD

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
