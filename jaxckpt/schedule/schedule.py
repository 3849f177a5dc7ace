"""The order of work that a plan asks for: what runs again, when, and what it waits for.

`schedule` turns decisions into steps. The rewriter maps them to equations one to one, and the cost model replays the
same steps, so what is predicted is what is built.

The rules, which are those of `jax.checkpoint` seen from the joint graph:

1. A value decided as `Save` is pinned: it passes a barrier where it is made, and everybody reads it behind that
   barrier. Otherwise a compiler may keep both it and what it came from. What waits in a stack needs none.
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
   back. In the body of a loop each turn moves its own value, or the one of the turn before.
7. What stands in the body of an open loop is computed again where its reader stands, in the same turn: in the body of
   the backward loop, or in the same body. What it starts from has waited for all turns. What stands further out is
   computed again before the loop begins that asks for it. A slice of an array that is there is never kept: the other
   loop goes through the array too. In another loop's body no barrier is needed: a compiler merges nothing over the
   border of a loop, and each turn waits for the one before. All this holds for branches of conds too, which are
   computations of their own. What says which branch runs is always kept, and so is what a turn hands on or a branch
   gives. What a body gets from further out is there before it begins.
8. The gradient of a pooling reads what was pooled behind a barrier with its cotangent: compilers split it in two, and
   would look for the places of the maxima long before they have a use for them.
9. A sum that the backward goes on adding to behind later products passes the barriers of stages on its way (see
   `sums`): compilers would add it all up at the end, and keep what it is made of.
10. Zeros that a gradient is scattered into are made when it is there (see `zeros`).

Read after `plan`, `away`, `steps`, `sums` and `zeros`. Complexity: linear in ops, plus the copies made.
"""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property

from jaxckpt.ir.decision import Offload, Partition, Recompute
from jaxckpt.ir.graph import Graph, Op, Phase
from jaxckpt.ir.loop import BODY_INPUTS, BODY_OUTPUTS
from jaxckpt.ir.plan import GraphPlan
from jaxckpt.schedule.argument_derived import argument_roots, is_broadcast
from jaxckpt.schedule.grad_accumulators import GradAccumulators
from jaxckpt.schedule.partition import plan_with_axes
from jaxckpt.schedule.prefetch import is_pipelined, transfer_times
from jaxckpt.schedule.scatter_inits import initialiser_dependencies
from jaxckpt.schedule.steps import Barrier, Move, Run, Schedule, Step, run_of
from jaxckpt.schedule.validate import validate_decisions

_BEGINS_EARLY = frozenset({"select_and_scatter_add"})
"""Ops that become two, of which the first needs no cotangent and leaves large indices."""
_OF_BRANCH = -1
"""In the place of a stage: what a branch computes again of an earlier one."""

_Where = tuple[int, int | None]


def schedule(graph: Graph, plan: GraphPlan) -> Schedule:
    """Lays out the work of a step under a plan.

    Args:
      graph: The step.
      plan: Decisions for it.

    Returns:
      The steps in order. Where a plan only saves they are the graph's own ops and nothing else: there is nothing to
      pin against.

    Raises:
      GraphError: A value is dropped that an op with effects, or no forward op, makes.
      UnsupportedDecisionError: A value of a loop's body is offloaded that cannot wait in a stack on the host.
    """
    validate_decisions(graph, plan)
    return _Scheduler(graph, plan_with_axes(graph, plan)).run()


def stage_of(plan: GraphPlan, op: int) -> int:
    """The index of the stage that a forward op belongs to."""
    return max(0, bisect_right(plan.stages, op) - 1)


@dataclass(slots=True)
class _Again:
    """What one stage computes again: its own instances of values, and the ops that have run already."""

    env: dict[int, int]
    done: set[int] = field(default_factory=set)


class _Scheduler:
    def __init__(self, graph: Graph, plan: GraphPlan):
        self.graph = graph
        self.plan = plan
        self.origin = [value.id for value in graph.values]
        self.env = list(self.origin)
        self.steps: list[Step] = []
        self.again: dict[_Where, _Again] = {}
        """By stage and loop; what is computed again by itself is under ~value."""
        self.loop: int | None = None
        """The loop in whose body the steps to come stand."""
        self.prepared: set[int] = set()
        """Loops for which what stands further out is there; branches of one cond all before the first."""
        dropped = {v for v, d in plan.decisions.items() if isinstance(d, Recompute)}
        self.dropped = dropped - graph.slices - graph.indices
        self.away = transfer_times(graph, plan)
        self.in_turns = frozenset(v for v in self.away.values if self._loop_of(v) is not None)
        self.ahead = frozenset(v for v in self.in_turns if is_pipelined(graph, v, plan.decisions[v]))
        self.stored: dict[int, int] = {}
        self.leaving: list[int] = []
        self.unheld: list[int] = []
        self.fetched: dict[int, int] = {}
        self.whole: dict[int, int] = {}
        """What is fetched as shards, gathered."""
        self.gathered: dict[tuple[int, int | None], int] = {}
        kept = {v for v, d in plan.decisions.items() if not isinstance(d, Recompute) and not self._is_stacked(v)}
        self.pinned = kept - self.in_turns if self.dropped or self.away.values else set()
        self.standing: dict[int, frozenset[int]] = {}
        self.spread: dict[int, bool] = {}
        self._outputs = frozenset(graph.outputs)
        self.kept = (graph.available | plan.decisions.keys()) - self.dropped
        """Values that are still there when the backward comes (rule 2)."""
        self.waits = initialiser_dependencies(graph) if self.dropped else {}
        self.dropped_of: defaultdict[int, list[int]] = defaultdict(list)
        """By stage what it has to compute again."""
        for v in sorted(self.dropped):
            self.dropped_of[stage_of(plan, self._op_of(v))].append(v)

    @cached_property
    def sums(self) -> GradAccumulators:
        """Asked for only where something is dropped."""
        return GradAccumulators(self.graph)

    def run(self) -> Schedule:
        changed = self._reading_what_changes()
        for op in self.graph.ops:
            late = op.phase is not Phase.FORWARD
            if op.loop != self.loop:
                self._go_to(op.loop)
            if self.away.values:
                self._leave(op.id)
                for value in self.away.load_before.get(op.id, ()) if op.loop is None else ():
                    self._fetch(value, op.id)
            if op.id in changed or self.away.values or op.id in self.waits:
                reads = self._late_operands(op) if late else tuple(self.env[v] for v in op.reads)
                if self.dropped and op.primitive in _BEGINS_EARLY and op.phase is Phase.BACKWARD:
                    reads = self._held_back(op, reads)
                after = self.env[self.waits[op.id]] if op.id in self.waits else None
                self.steps.append(Run(op=op.id, reads=reads, writes=op.writes, loop=self.loop, after=after))
            else:
                self.steps.append(run_of(op))
            if op.phase is Phase.BACKWARD:
                self.unheld.extend(op.writes)
            if not self.pinned.isdisjoint(op.writes):
                for value in sorted(self.pinned.intersection(op.writes)):
                    self._pin(value)
            for value in sorted(self.in_turns.intersection(op.writes)) if self.in_turns else ():
                self.stored[value] = self._moved(value, self.env[value], back=False)
        return Schedule(
            steps=tuple(self.steps),
            origin=tuple(self.origin),
            outputs=tuple(self.env[v] for v in self.graph.outputs),
        )

    def _late_operands(self, op: Op) -> tuple[int, ...]:
        """What an op after the forward pass reads; not always where it stands (see `jaxckpt.ir.loop`)."""
        if op.primitive in BODY_OUTPUTS:
            return tuple(self.env[v] for v in op.reads)
        if op.primitive not in BODY_INPUTS:
            return tuple(self._late(v, op.id) for v in op.reads)
        return self._entering(op, op.id)

    def _entering(self, op: Op, reader: int) -> tuple[int, ...]:
        """What an op in the body at hand reads that looks out of it: it is there since before the loop."""
        here, self.loop = self.loop, self._around(self.loop)
        reads = tuple(self._late(v, reader) if self._is_gone(v, here) else self.env[v] for v in op.reads)
        self.loop = here
        return reads

    def _around(self, loop: int | None) -> int | None:
        return None if loop is None else self.graph.loops[loop].parent

    def _held_back(self, op: Op, reads: tuple[int, ...]) -> tuple[int, ...]:
        """Operands that are there since the forward pass, behind a barrier with the cotangent that comes (rule 8)."""
        cotangent, operand = reads
        if self.origin[operand] not in self.pinned or self.env[op.reads[1]] != operand:
            return reads
        held = self._instance(op.reads[1])
        barrier = Barrier(reads=(operand,), writes=(held,), trigger=cotangent, why="recompute", loop=self.loop)
        self.steps.append(barrier)
        return cotangent, held

    def _go_to(self, loop: int | None) -> None:
        """Leaves bodies and enters others; what they want again of what stands further out is computed before."""
        for around in self.graph.path(loop):
            if around not in self.graph.path(self.loop):
                for beside in self.graph.sibling_branches[around]:
                    if (self.dropped or self.away.values) and beside not in self.prepared:
                        self.prepared.add(beside)
                        self._prepare(beside)
                self.loop = around
        self.loop = loop

    def _prepare(self, loop: int) -> None:
        """Brings back or computes again, before a loop begins, what is not there and stands further out."""
        graph, depth = self.graph, len(self.graph.path(loop))
        late = [op for op in graph.ops if op.phase is not Phase.FORWARD and loop in graph.path(op.loop)]
        entering = {v for op in late if op.loop == loop and op.primitive in BODY_INPUTS for v in op.reads}
        self.loop = self._around(loop)
        wanted: set[int] = set()
        pending = [v for op in late for v in op.reads]
        while pending:
            value = pending.pop()
            made = graph.producer[value]
            if value in self.away.values and self._depth(value) < depth:
                self._late(value, late[0].id)
            if value in wanted or made is None or not self._is_gone(value, loop):
                continue
            wanted.add(value)
            pending.extend(graph.ops[made].reads)
            if value in graph.slices and self._depth(value) == depth:
                entering.update(graph.ops[made].reads)
        for value in sorted(wanted):
            if self._depth(value) < depth and (value in entering or not self._is_spread(value)):
                self._late(value, late[0].id)

    def _is_gone(self, value: int, loop: int | None) -> bool:
        """Whether a value has to be made again where the body of a loop asks for it."""
        if not self.graph.loops:
            return value not in self.kept
        path = self.graph.path(loop)
        if value in self.graph.slices:
            return self._loop_of(value) not in path
        return value not in self.kept and not any(value in self._standing(around) for around in path)

    def _standing(self, loop: int) -> frozenset[int]:
        """What stands further out and the forward ops of a body read: it is there while the loop turns."""
        if loop not in self.standing:
            graph = self.graph
            forward = (op for op in graph.ops if op.phase is Phase.FORWARD and loop in graph.path(op.loop))
            depth = len(graph.path(loop))
            self.standing[loop] = frozenset(v for op in forward for v in op.reads if self._depth(v) < depth)
        return self.standing[loop]

    def _loop_of(self, value: int) -> int | None:
        made = self.graph.producer[value]
        return None if made is None else self.graph.ops[made].loop

    def _is_stacked(self, value: int) -> bool:
        """Whether a value waits in a stack for another loop."""
        loop = self._loop_of(value)
        return loop is not None and self.graph.loops[loop].rolled and loop not in self.graph.loops_after_forward

    def _landing(self, value: int) -> int | None:
        """The loop around the steps to come in whose body a value is made again."""
        if self.loop is None:
            return None
        return self.loop if self._is_spread(value) else (None, *self.graph.path(self.loop))[self._depth(value)]

    def _is_spread(self, value: int) -> bool:
        if value not in self.spread:
            self.spread[value] = is_broadcast(self.graph, value)
        return self.spread[value]

    def _depth(self, value: int) -> int:
        """How many open loops stand around a value."""
        return 0 if not self.graph.loops else len(self.graph.path(self._loop_of(value)))

    def _reading_what_changes(self) -> set[int]:
        """Ops that read a value which is pinned, dropped or held back; all others run as they stand."""
        sums = self.sums.ends if self.dropped else ()
        return {op for v in (*self.pinned, *self.dropped, *sums) for op in self.graph.readers[v]}

    def _pin(self, value: int) -> None:
        pinned = self._instance(value)
        self.steps.append(Barrier(reads=(self.env[value],), writes=(pinned,), loop=self.loop))
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
        """Puts a value where it waits, or makes it again what it was; a shard is sent once it is cut."""
        decision, cut = self._away_as(value)
        forms = (decision,) if cut is None else (cut, decision)
        for form in reversed(forms) if back else forms:
            instance = self._move(value, instance, form, back=back)
        return instance

    def _away_as(self, value: int) -> tuple[Offload | Partition, Partition | None]:
        """The decision of a value that waits elsewhere, and how it is cut before that."""
        decision = self.plan.decisions[value]
        assert isinstance(decision, Offload | Partition), "only these are away"
        return decision, decision.partition if isinstance(decision, Offload) else None

    def _move(self, value: int, instance: int, decision: Offload | Partition, *, back: bool) -> int:
        moved = self._instance(value)
        self.steps.append(
            Move(
                reads=(instance,),
                writes=(moved,),
                decision=decision,
                restores=back,
                loop=self.loop,
                is_pipelined=value in self.ahead and isinstance(decision, Offload),
            )
        )
        return moved

    def _leave(self, op: int) -> None:
        """Holds the forward pass until the copies that must be done before an op are."""
        self.leaving.extend(self.away.store_before.get(op, ()))
        front = self.graph.forward_frontier[op] if self.leaving and self.loop is None else None
        if front is None:
            return
        leaving, self.leaving = self.leaving, []
        reads = (self.env[front], *(self.stored[v] for v in leaving))
        writes = tuple(map(self._instance, (front, *leaving)))
        self.steps.append(Barrier(reads=reads, writes=writes, why="store"))
        self.env[front] = writes[0]
        self.stored.update(zip(leaving, writes[1:], strict=True))

    def _fetch(self, value: int, reader: int) -> None:
        """Brings a value back, not before the backward has come to a reader and has finished with earlier ones."""
        if value in self.fetched:
            return
        done = self._done_before(reader)
        reads = (self.stored[value], *(self.env[v] for v in done))
        held, *kept = writes = tuple(map(self._instance, (value, *done)))
        self.steps.append(Barrier(reads=reads, writes=writes, trigger=self.graph.backward_frontier[reader], why="load"))
        for result, instance in zip(done, kept, strict=True):
            self.env[result] = instance
        self.fetched[value] = self._move(value, held, self._away_as(value)[0], back=True)

    def _whole(self, value: int) -> int:
        """What has come back from the host, gathered if each device had sent its shard."""
        cut = self._away_as(value)[1]
        if cut is None:
            return self.fetched[value]
        if value not in self.whole:
            self.whole[value] = self._move(value, self.fetched[value], cut, back=True)
        return self.whole[value]

    def _gathered(self, value: int, reader: int) -> int:
        """A value of a turn, whole again; in another loop's body nothing has to wait for that (rule 7)."""
        path = self.graph.path(self.loop)
        where = next(((value, around) for around in path if (value, around) in self.gathered), (value, self.loop))
        if where not in self.gathered:
            held = self.stored[value]
            if self.loop == self._loop_of(value):
                reads, held, trigger = (held,), self._instance(value), self.graph.backward_frontier[reader]
                self.steps.append(Barrier(reads=reads, writes=(held,), trigger=trigger, why="load", loop=self.loop))
            self.gathered[where] = self._moved(value, held, back=True)
        return self.gathered[where]

    def _late(self, value: int, reader: int) -> int:
        """The instance that an op after the forward pass reads."""
        if value in self.in_turns:
            return self._gathered(value, reader)
        if value in self.away.values:
            self._fetch(value, reader)
            return self._whole(value)
        if not self._is_gone(value, self.loop):
            return self.env[value]
        return self._sliced(value, reader) if value in self.graph.slices else self._recomputed(value, reader)

    def _sliced(self, value: int, reader: int) -> int:
        """The slice that the body at hand has of an array of which another loop had one."""
        again = self.again.setdefault((~value, self._landing(value)), _Again(env={}))
        if value not in again.env:
            op = self.graph.ops[self._op_of(value)]
            again.env.update(zip(op.reads, self._entering(op, reader), strict=True))
            self._copy(op.id, again)
        return again.env[value]

    def _instance(self, value: int) -> int:
        self.origin.append(value)
        return len(self.origin) - 1

    def _recomputed(self, value: int, reader: int) -> int:
        """The instance of a dropped value that a late op reads; computes it again if nobody did (rule 3)."""
        landing = self._landing(value)
        where = (self._stage(value, landing), landing)
        spread = self._depth(value) < len(self.graph.path(landing))
        if spread or (where not in self.again and argument_roots(self.graph, value) is not None):
            where = (~value, landing)
            self.again.setdefault(where, _Again(env={}))
        elif where not in self.again:
            self.again[where] = _Again(env={})
            self._open(where, reader)
        again = self.again[where]
        if value not in again.env:
            ops, sources = self._closure([value], stop=again.env)
            self._wait(ops, sources, again, reader)
            for op in sorted(ops - again.done):
                self._copy(op, again)
        return again.env[value]

    def _stage(self, value: int, landing: int | None) -> int:
        """The stage that computes a value again; in another cond's branch there is one alone.

        No barrier keeps copies of two stages apart there, so a compiler would make one of them.
        """
        if landing is not None and self.graph.loops[landing].branch is not None and landing != self._loop_of(value):
            return _OF_BRANCH
        return stage_of(self.plan, self._op_of(value))

    def _open(self, where: _Where, reader: int) -> None:
        """Starts a stage behind one barrier: all that it has to recompute by now begins there.

        Forward ops can stand behind the first late one, where a step takes two gradients or counts its steps; what
        they make is not there yet, and waits for its own reader.
        """
        stage, loop = where
        wanted = [v for v in self.dropped_of[stage] if self._op_of(v) < reader and self._is_asked_in(loop, v)]
        self._wait(*self._closure(wanted), self.again[where], reader)

    def _wait(self, ops: set[int], sources: set[int], again: _Again, reader: int) -> None:
        """Passes values through a barrier with the front of the backward that the reader stands at.

        In another loop's body than that of the ops nothing has to (rule 7).
        """
        loop = None if self.loop is None else self.graph.loops[self.loop]
        if loop is not None and loop.rolled and all(self.graph.ops[op].loop != self.loop for op in ops):
            again.env.update((v, self._late(v, reader)) for v in sorted(sources))
            return
        passing = sorted(sources)
        if not passing:
            return
        reads = tuple(self._late(v, reader) for v in passing)
        again.env.update((v, self._instance(v)) for v in passing)
        writes = tuple(again.env[v] for v in passing)
        trigger = self.graph.backward_frontier[reader]
        for v in self.sums.crossing(reader) if self.loop is None else ():
            reads, writes = (*reads, self.env[v]), (*writes, held := self._instance(v))
            self.env[v] = held
        self.steps.append(Barrier(reads=reads, writes=writes, trigger=trigger, why="recompute", loop=self.loop))

    def _closure(self, wanted: list[int], stop: dict[int, int] | None = None) -> tuple[set[int], set[int]]:
        """The ops of one level that must run again for some values, and the values that they start from."""
        depth = max(map(self._depth, wanted), default=0)
        ops: set[int] = set()
        stop, slices = stop or {}, self.graph.slices
        sources, pending = set[int](), [v for v in wanted if v not in stop]
        while pending:
            op = self._op_of(pending.pop())
            if op in ops:
                continue
            ops.add(op)
            for read in self.graph.ops[op].reads:
                if read in stop:
                    continue
                if self._is_gone(read, self.loop) and read not in slices and self._depth(read) == depth:
                    pending.append(read)
                else:
                    sources.add(read)
        return ops, sources

    def _copy(self, op: int, again: _Again) -> None:
        again.done.add(op)
        reads = tuple(again.env[v] for v in self.graph.ops[op].reads)
        writes = tuple(self._instance(v) for v in self.graph.ops[op].writes)
        after = again.env.get(self.waits[op]) if op in self.waits else None
        self.steps.append(Run(op=op, reads=reads, writes=writes, is_clone=True, loop=self.loop, after=after))
        for value, instance in zip(self.graph.ops[op].writes, writes, strict=True):
            again.env.setdefault(value, instance)

    def _is_asked_in(self, loop: int | None, value: int) -> bool:
        """Whether a value is made again in the body of a loop itself, or where the loop is None outside of all."""
        if self._depth(value) != len(self.graph.path(loop)):
            return False
        late = (op for r in self.graph.readers[value] if (op := self.graph.ops[r]).phase is not Phase.FORWARD)
        return any(loop is None or loop in self.graph.path(op.loop) for op in late)

    def _op_of(self, value: int) -> int:
        op = self.graph.producer[value]
        assert op is not None, "only inputs and constants have no producer, and they are always kept"
        return op
