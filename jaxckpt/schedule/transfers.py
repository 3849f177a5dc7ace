"""Stores and loads of offloaded values, and of shards of partitioned ones (software prefetching).

1. A value is stored as soon as it is pinned, and the forward pass waits for the store where `prefetch` says. Stores
   that end at one place end in the order of their starts, each at a barrier of its own: at one barrier XLA's scheduler
   for GPUs would start all of them when the last of their values is computed.

     before: 0  1  2            after: 0  pin [1]  store 1  1  barrier [2, 1]  2

2. A load starts behind the end of the longest chain of backward ops so far, and behind every result of the backward
   that is still to be read. A compiler that hides copies would otherwise postpone weight gradients, and so keep their
   operands. Updates whose gradients are finished run before a load from the host, and their results pass in place of
   the gradients (`updates`). The barriers of stages do the same where values or optimiser state are on the host:
   between two stages that loaded nothing a decoder of width 4,096 kept 0.94 GiB that the products of gradients read,
   and with state on the host and 135 sequences the gradient of its logits, 33 GiB.

     before: 4  5  6            after: 4  barrier [3, 5] after 5  load 3  5  6

3. In the body of a loop every iteration stores and loads its own value, or, where the copies are pipelined over
   iterations, stores that of the one before and loads that of the next one.

A shard is cut before it is stored, and gathered when a loaded shard is first read.

Read after `prefetch`, `backward_barriers` and `updates`.
"""

from collections.abc import Sequence

from jaxckpt.ir import Graph, GraphPlan, Moved, Op, Partition
from jaxckpt.ir.regions import BODY_OUTPUTS
from jaxckpt.schedule.backward_barriers import BackwardBarriers
from jaxckpt.schedule.prefetch import is_pipelined, load_starts, store_ends
from jaxckpt.schedule.steps import Move, StepWriter
from jaxckpt.schedule.updates import UpdateRunner


class Transfers:
    """Copies of the values that a plan offloads or partitions.

    Attributes:
      values: Values that are offloaded or partitioned.
      in_bodies: Those of them that iterations of a loop make, each its own.
    """

    def __init__(
        self, graph: Graph, plan: GraphPlan, writer: StepWriter, updates: UpdateRunner, barriers: BackwardBarriers
    ):
        self._graph, self._plan, self._writer, self._updates, self._barriers = graph, plan, writer, updates, barriers
        self._store_before, self._load_before = store_ends(graph, plan), load_starts(graph, plan)
        self.values = frozenset(v for v, d in plan.decisions.items() if d.moves)
        self.in_bodies = frozenset(v for v in self.values if graph.loop_of[v] is not None)
        self._stored: dict[int, int] = {}
        """The instance of a value on the host, or its shard."""
        self._unfinished_stores: list[int] = []
        self._results: list[int] = []
        """Results of the backward and of updates since the last load."""
        self._loaded: dict[int, int] = {}
        self._restored: dict[tuple[int, int | None], int] = {}
        """Instances loaded and gathered, by value and the loop in whose body that was."""

    def before(self, op: Op) -> None:
        """Waits for the stores that have to end before an op (rule 1), and starts the loads that begin there."""
        self._unfinished_stores.extend(self._store_before.get(op.id, ()))
        writer = self._writer
        is_outside = writer.loop is None and op.primitive not in BODY_OUTPUTS  # which follow their body at once
        frontier = self._graph.forward_frontier[op.id] if self._unfinished_stores and is_outside else None
        if frontier is not None:
            for value in sorted(self._unfinished_stores, key=lambda v: self._graph.producer[v] or 0):
                reads = writer.current[frontier], self._stored[value]
                writer.current[frontier], self._stored[value] = writer.barrier(reads, why="store")
            self._unfinished_stores.clear()
        if op.loop is None:
            for value in self._load_before.get(op.id, ()):
                self.start_load(value, op.id)

    def after_backward(self, results: Sequence[int]) -> None:
        """Notes results of the backward: the next load waits for them, unless they are those of an iteration."""
        self._results.extend(v for v in results if self._graph.loop_of[v] is None)

    def store(self, value: int) -> None:
        """Stores the current instance of a value."""
        decision, cut = self._forms(value)
        instance = self._writer.current[value]
        if cut is not None:
            instance = self._move(value, instance, cut, restores=False)
        self._stored[value] = self._move(value, instance, decision, restores=False)

    def start_load(self, value: int, reader: int) -> None:
        """Loads a value that is made outside of loops, unless it is loaded already (rule 2).

        Results since the last load that are still to be read, new parameters and weight gradients mostly, come first.
        """
        if value in self._loaded:
            return
        writer = self._writer
        if writer.loop is None and self._forms(value)[0].on_host:
            self._results.extend(self._updates.run_before(reader))
        unread = self._unread_results(reader)
        (held,) = self._barriers.pass_on((self._stored[value],), unread, reader=reader, why="load")
        self._loaded[value] = self._move(value, held, self._forms(value)[0], restores=True)

    def results_before_stage(self, reader: int) -> list[int]:
        """Results that pass the barrier of a stage, in a plan with values or state on the host; none in other plans."""
        if not self._plan.copies:
            return []
        self._results.extend(self._updates.run_before(reader))
        return self._unread_results(reader)

    def _unread_results(self, reader: int) -> list[int]:
        """Results of the backward and of updates since the last barrier that are still to be read from an op on."""
        outputs = frozenset(self._graph.outputs)
        unread = [v for v in self._results if v in outputs or self._is_read_from(reader, v)]
        self._results.clear()
        return unread

    def _is_read_from(self, reader: int, value: int) -> bool:
        """True if an op from `reader` on, and no update that ran already, reads a value."""
        return any(op >= reader and op not in self._updates.done for op in self._graph.readers[value])

    def loaded(self, value: int, reader: int) -> int:
        """The instance of a value that an op after the forward pass reads, loaded and gathered."""
        if value in self.in_bodies:
            return self._loaded_in_body(value, reader)
        self.start_load(value, reader)
        cut = self._forms(value)[1]
        if cut is None:
            return self._loaded[value]
        if (value, None) not in self._restored:
            self._restored[value, None] = self._move(value, self._loaded[value], cut, restores=True)
        return self._restored[value, None]

    def _loaded_in_body(self, value: int, reader: int) -> int:
        """An iteration's value; in the body of another loop than its own the load waits for nothing."""
        writer, path = self._writer, self._graph.path(self._writer.loop)
        where = next(((value, loop) for loop in path if (value, loop) in self._restored), (value, writer.loop))
        if where not in self._restored:
            instance = self._stored[value]
            if writer.loop == self._graph.loop_of[value]:
                trigger = writer.latest(self._graph.backward_frontier[reader])
                (instance,) = writer.barrier((instance,), trigger=trigger, why="load")
            decision, cut = self._forms(value)
            instance = self._move(value, instance, decision, restores=True)
            self._restored[where] = instance if cut is None else self._move(value, instance, cut, restores=True)
        return self._restored[where]

    def _forms(self, value: int) -> tuple[Moved, Partition | None]:
        """The decision for a value, and the partition that an offload cuts the value by before it is stored."""
        decision = self._plan.decisions[value]
        assert isinstance(decision, Moved), "only these are transferred"
        return decision, decision.partition

    def _move(self, value: int, instance: int, decision: Moved, *, restores: bool) -> int:
        writer = self._writer
        pipelined = decision.on_host and is_pipelined(self._graph, value, self._plan.decisions[value])
        reads, writes, loop = (instance,), (writer.new_instance(value),), writer.loop
        writer.steps.append(
            Move(reads=reads, writes=writes, decision=decision, restores=restores, loop=loop, is_pipelined=pipelined)
        )
        return writes[0]
