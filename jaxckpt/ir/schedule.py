"""The order of work that a plan asks for: what runs again, when, and what it waits for.

`schedule` turns decisions into steps over *instances*. Instance `i < len(graph.values)` is value `i` itself;
later instances are values passed through a barrier or computed again. The rewriter maps steps to equations
one to one, and the cost model replays the same steps, so what is predicted is what is built.

The rules, which are those of `jax.checkpoint` seen from the joint graph:

1. A value decided as `Save` is pinned: it passes a barrier where it is made, and everybody reads it behind that
   barrier. Otherwise a compiler may keep both the value and what it came from.
2. A dropped value is computed again just before the first late op that reads it, from what is still there:
   arguments, saved values, residuals left to the compiler, results of the step, and whatever an op with effects
   wrote.
3. All that a stage recomputes starts behind one barrier, together with the front of the backward: what stands at the
   end of its longest chain of ops when the first of these values is asked for. So no copy can start before the
   backward arrives, nor be merged with the original.
   A value made of arguments alone, by views and elementwise work (a transposed or cast parameter), opens no stage:
   where it is read before its own stage is open, it is computed again by itself. A head tied to the embedding would
   start the last block otherwise.
4. A copy made on the way to another stage's values serves that stage alone: it is not kept for its own.
5. An op with effects never runs twice.
6. A value decided as `Offload` or `Partition` is pinned, and its stored form is what stays: on the host, or a shard of
   it. A copy to the host is held in the forward pass (behind the front of the forward when it must be done). It starts
   back behind the front of the backward and behind all that the backward has finished so far: a compiler that hides
   copies would otherwise put off weight gradients, and keep what they read. Late readers and copies read what came
   back.

Read after `plan` and `away`. Complexity: linear in ops, plus the copies made.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Literal

from jaxckpt._errors import GraphError
from jaxckpt.ir.away import away
from jaxckpt.ir.decision import Offload, Partition, Recompute
from jaxckpt.ir.graph import Graph, Phase
from jaxckpt.ir.kind import Kind
from jaxckpt.ir.plan import Plan

Why = Literal["pin", "recompute", "leave", "fetch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One op, run over instances; `again` where it is a copy."""

    op: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """Instances passed on under new ids, all of them after `trigger` (an instance) is there.

    A pin is a barrier over one instance without a trigger. `why` says what it is for.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    trigger: int | None = None
    why: Why = "pin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A value put into the form in which it waits, or brought back from it.

    Attributes:
      reads: The instance that is there, alone.
      writes: The instance that comes of it, alone.
      decision: Where and how it waits.
      back: Whether it comes back.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    decision: Offload | Partition
    back: bool = False


Step = Run | Barrier | Move


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Steps in order.

    Attributes:
      steps: Runs and barriers; each reads only what earlier ones wrote, inputs and constants.
      origin: For each instance the value that it is.
      outputs: The instances that the step returns, in the order of `Graph.outputs`.
    """

    steps: tuple[Step, ...]
    origin: tuple[int, ...]
    outputs: tuple[int, ...]


def schedule(graph: Graph, plan: Plan) -> Schedule:
    """Lays out the work of a step under a plan.

    Args:
      graph: The step.
      plan: Decisions for it.

    Returns:
      The steps in order. Where a plan only saves they are the graph's own ops and nothing else: there is nothing to
      pin against.

    Raises:
      GraphError: A value is dropped that an op with effects, or no forward op, makes.
    """
    return _Scheduler(graph, plan).run()


def stage_of(plan: Plan, op: int) -> int:
    """The index of the stage that a forward op belongs to."""
    return max(0, bisect_right(plan.stages, op) - 1)


@dataclass(slots=True)
class _Again:
    """What one stage computes again: its own instances of values, and the ops that have run already."""

    env: dict[int, int]
    done: set[int] = field(default_factory=set)


class _Scheduler:
    def __init__(self, graph: Graph, plan: Plan):
        self.graph = graph
        self.plan = plan
        self.origin = [value.id for value in graph.values]
        self.env = list(self.origin)
        self.steps: list[Step] = []
        self.again: dict[int, _Again] = {}
        """By stage; what is computed again by itself is under ~value."""
        self.dropped = {v for v, d in plan.decisions.items() if isinstance(d, Recompute)}
        self.away = away(graph, plan)
        self.stored: dict[int, int] = {}
        self.unheld: list[int] = []
        self.fetched: dict[int, int] = {}
        self.pinned = set(plan.decisions) - self.dropped if self.dropped or self.away.values else set()
        self._outputs = frozenset(graph.outputs)
        self.kept = self._kept()
        self._refuse_impossible()

    def run(self) -> Schedule:
        changed = self._reading_what_changes()
        for op in self.graph.ops:
            late = op.phase is not Phase.FORWARD
            if self.away.values:
                self._leave(op.id)
                for value in self.away.fetch_before.get(op.id, ()):
                    self._fetch(value, op.id)
            reads = op.reads
            if op.id in changed or self.away.values:
                reads = tuple(self._late(v, op.id) if late else self.env[v] for v in op.reads)
            self.steps.append(Run(op=op.id, reads=reads, writes=op.writes))
            if op.phase is Phase.BACKWARD:
                self.unheld.extend(op.writes)
            if not self.pinned.isdisjoint(op.writes):
                for value in sorted(self.pinned.intersection(op.writes)):
                    self._pin(value)
        return Schedule(
            steps=tuple(self.steps),
            origin=tuple(self.origin),
            outputs=tuple(self.env[v] for v in self.graph.outputs),
        )

    def _reading_what_changes(self) -> set[int]:
        """Ops that read a value which is pinned or dropped; all others run as they stand."""
        return {op for v in (*self.pinned, *self.dropped) for op in self.graph.readers[v]}

    def _kept(self) -> frozenset[int]:
        """Values that are still there when the backward comes (rule 2)."""
        graph = self.graph
        kept = set(graph.inputs) | set(graph.constants) | set(graph.outputs) | set(self.plan.decisions)
        for op in graph.ops:
            if op.phase is not Phase.FORWARD or op.effects:
                kept.update(op.writes)
            else:
                kept.update(v for v in op.writes if self._read_late(v))
        return frozenset(kept - self.dropped)

    def _refuse_impossible(self) -> None:
        ops = self.graph.ops
        for value in sorted(self.dropped):
            op = self.graph.producer[value]
            if op is None or ops[op].phase is not Phase.FORWARD or ops[op].effects:
                raise GraphError(
                    f"schedule: value {value} cannot be computed again.",
                    got=f"Recompute for {self.graph.values[value]}"
                    + ("" if op is None else f", written by `{ops[op].primitive}` in {ops[op].scope or '/'}"),
                    needed="a value that a forward op without effects makes",
                    advice="leave it out of the plan, or save it",
                    value=value,
                )

    def _pin(self, value: int) -> None:
        pinned = self._instance(value)
        self.steps.append(Barrier(reads=(self.env[value],), writes=(pinned,)))
        self.env[value] = pinned
        if value in self.away.values:
            self.stored[value] = self._moved(value, pinned, back=False)

    def _done_before(self, reader: int) -> tuple[int, ...]:
        """Results of the backward since the last barrier that are still to be read: weight gradients, mostly."""
        outputs, readers = self._outputs, self.graph.readers
        done = tuple(v for v in self.unheld if v in outputs or (readers[v] and readers[v][-1] >= reader))
        self.unheld.clear()
        return done

    def _moved(self, value: int, instance: int, *, back: bool) -> int:
        moved = self._instance(value)
        decision = self.plan.decisions[value]
        assert isinstance(decision, Offload | Partition), "only these are away"
        self.steps.append(Move(reads=(instance,), writes=(moved,), decision=decision, back=back))
        return moved

    def _leave(self, op: int) -> None:
        """Holds the forward pass until the copies that must be done before an op are."""
        leaving = self.away.leave_before.get(op, ())
        front = self.graph.forward_fronts[op] if leaving else None
        if front is None:
            return
        reads = (self.env[front], *(self.stored[v] for v in leaving))
        writes = tuple(map(self._instance, (front, *leaving)))
        self.steps.append(Barrier(reads=reads, writes=writes, why="leave"))
        self.env[front] = writes[0]
        self.stored.update(zip(leaving, writes[1:], strict=True))

    def _fetch(self, value: int, reader: int) -> None:
        """Brings a value back, not before the backward has come to a reader and has finished with earlier ones."""
        if value in self.fetched:
            return
        done = self._done_before(reader)
        reads = (self.stored[value], *(self.env[v] for v in done))
        held, *kept = writes = tuple(map(self._instance, (value, *done)))
        self.steps.append(Barrier(reads=reads, writes=writes, trigger=self.graph.fronts[reader], why="fetch"))
        for result, instance in zip(done, kept, strict=True):
            self.env[result] = instance
        self.fetched[value] = self._moved(value, held, back=True)

    def _late(self, value: int, reader: int) -> int:
        """The instance that an op after the forward pass reads."""
        if value in self.dropped:
            return self._recomputed(value, reader)
        if value in self.away.values:
            self._fetch(value, reader)
            return self.fetched[value]
        return self.env[value]

    def _instance(self, value: int) -> int:
        self.origin.append(value)
        return len(self.origin) - 1

    def _recomputed(self, value: int, reader: int) -> int:
        """The instance of a dropped value that a late op reads; computes it again if nobody did (rule 3)."""
        stage = stage_of(self.plan, self._op_of(value))
        if stage not in self.again and self._is_of_arguments(value):
            stage = ~value
            self.again.setdefault(stage, _Again(env={}))
        elif stage not in self.again:
            self.again[stage] = _Again(env={})
            self._open(stage, reader)
        again = self.again[stage]
        if value not in again.env:
            ops, sources = self._closure([value], stop=again.env)
            self._wait(sources, again, reader)
            for op in sorted(ops - again.done):
                self._copy(op, again)
        return again.env[value]

    def _is_of_arguments(self, value: int) -> bool:
        """Whether a value is made of arguments alone, by views and elementwise work."""
        pending, seen = [value], set[int]()
        while pending:
            made = self.graph.producer[pending.pop()]
            if made is None or made in seen:
                continue
            seen.add(made)
            if self.graph.ops[made].kind not in (Kind.VIEW, Kind.ELEMENTWISE):
                return False
            pending.extend(self.graph.ops[made].reads)
        return True

    def _open(self, stage: int, reader: int) -> None:
        """Starts a stage behind one barrier: all that it has to recompute by now begins there.

        Forward ops can stand behind the first late one, where a step takes two gradients or counts its steps; what
        they make is not there yet, and waits for its own reader.
        """
        wanted = [
            v
            for v in sorted(self.dropped)
            if self._op_of(v) < reader and stage_of(self.plan, self._op_of(v)) == stage and self._read_late(v)
        ]
        self._wait(self._closure(wanted)[1], self.again[stage], reader)

    def _wait(self, sources: set[int], again: _Again, reader: int) -> None:
        """Passes values through a barrier with the front of the backward that the reader stands at."""
        if not sources:
            return
        reads = tuple(self._late(v, reader) for v in sorted(sources))
        again.env.update((v, self._instance(v)) for v in sorted(sources))
        writes = tuple(again.env[v] for v in sorted(sources))
        self.steps.append(Barrier(reads=reads, writes=writes, trigger=self.graph.fronts[reader], why="recompute"))

    def _closure(self, wanted: list[int], stop: dict[int, int] | None = None) -> tuple[set[int], set[int]]:
        """The ops that must run again for some values, and the values that they start from."""
        ops: set[int] = set()
        sources: set[int] = set()
        pending = [v for v in wanted if stop is None or v not in stop]
        while pending:
            op = self._op_of(pending.pop())
            if op in ops:
                continue
            ops.add(op)
            for read in self.graph.ops[op].reads:
                if stop is not None and read in stop:
                    continue
                if read in self.kept:
                    sources.add(read)
                else:
                    pending.append(read)
        return ops, sources

    def _copy(self, op: int, again: _Again) -> None:
        again.done.add(op)
        reads = tuple(again.env[v] for v in self.graph.ops[op].reads)
        writes = tuple(self._instance(v) for v in self.graph.ops[op].writes)
        self.steps.append(Run(op=op, reads=reads, writes=writes, again=True))
        for value, instance in zip(self.graph.ops[op].writes, writes, strict=True):
            again.env.setdefault(value, instance)

    def _read_late(self, value: int) -> bool:
        return any(self.graph.ops[r].phase is not Phase.FORWARD for r in self.graph.readers[value])

    def _op_of(self, value: int) -> int:
        op = self.graph.producer[value]
        assert op is not None, "only inputs and constants have no producer, and they are always kept"
        return op
