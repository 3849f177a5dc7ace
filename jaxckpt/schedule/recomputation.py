"""Operands of ops after the forward pass, and the clones that recompute them where they are not available.

Demand-driven: a value is recomputed when the first op asks for its stage, from the nearest available values on every
path (rematerialisation by backward slicing). The rules are numbered in `schedule`.

Read after `argument_derived`, `transfers`, `passing` and `initialisers`.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial

from jaxckpt.ir import Graph, GraphPlan, Op, Phase, Recompute, stage_at
from jaxckpt.ir.regions import BODY_INPUTS, BODY_OUTPUTS
from jaxckpt.schedule.argument_derived import arguments_only_broadcast, is_broadcast, made_of_arguments
from jaxckpt.schedule.backward_barriers import BackwardBarriers
from jaxckpt.schedule.components import connected_components
from jaxckpt.schedule.initialisers import initialiser_dependencies
from jaxckpt.schedule.passing import GradAccumulators, weights_of_stages
from jaxckpt.schedule.steps import Run, StepWriter
from jaxckpt.schedule.transfers import Transfers
from jaxckpt.schedule.updates import UpdateRunner

_OF_BRANCH = -1
"""The stage of all that one branch of a cond recomputes for another one."""
_SMALL = 1 / 16
"""Clones of at most this share of what their own barrier would write start behind the barrier before.

With barriers for the positions that gradients of gathers are added at, a net with messages on its edges (`benchmarks`,
`message-passing-1`) takes 4.8% longer under `layers:elementwise_recomputed`: nine slices are written to memory."""
_HAS_PRODUCER = "only inputs and constants have no producer, and they are always available"


class Availability:
    """Availability of every value, by the loop in whose body it is read.

    Attributes:
      dropped: Values that are recomputed by decision. A slice of a scanned array never is: the backward loop slices the
        array itself. Nor is the index of a cond.
    """

    def __init__(self, graph: Graph, plan: GraphPlan):
        self._graph = graph
        dropped = {v for v, decision in plan.decisions.items() if isinstance(decision, Recompute)}
        self.dropped = frozenset(dropped - graph.slices - graph.branch_indices)
        self._kept = (graph.available | plan.decisions.keys()) - self.dropped
        self.is_kept = self._kept.__contains__
        """True if a value is available in every body; in a step without loops no other value is available."""
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
        return len(self._graph.path(self._graph.loop_of[value])) if self._graph.loops else 0

    def body_for(self, value: int, loop: int | None) -> int | None:
        """The loop in whose body a value is recomputed for a reader in the body of `loop`."""
        if loop is None or self.is_broadcast(value):
            return loop
        return (None, *self._graph.path(loop))[self.depth(value)]


_READS_OF_A_VISIT = 4
"""Fewer reads of another stage's values are no visit: the backward of a stage reads some values of the stage before.

Visits of the battery's force loss `potential-2` have 9 to 37 reads; such reads in small steps of the tests are two."""


def _are_visited(stages: Sequence[int], counts: Mapping[int, int]) -> bool:
    """True if some stage occurs at least half as often as it does in all, and often enough for a visit."""
    return any(2 * count >= counts[stage] for stage, count in Counter(stages).items() if count >= _READS_OF_A_VISIT)


@dataclass(slots=True)
class _Clones:
    """Clones of a visit to a stage, or of a value by itself: the instances that they read and write, and their ops."""

    instances: dict[int, int] = field(default_factory=dict)
    ops: set[int] = field(default_factory=set)


def largest_elements(graph: Graph) -> frozenset[int]:
    """Results of `top_k` outside of loops; ask for them with `Graph.once`."""
    found = (op for op in graph.ops if op.primitive == "top_k" and op.phase is Phase.FORWARD and op.loop is None)
    return frozenset(v for op in found for v in op.writes if graph.readers[v])


class Recomputation:
    """Clones of forward ops, written where the first op after the forward pass needs them.

    Attributes:
      initialisers: For each op that makes the zeros of a scatter or a loop the value that it waits for (rule 10).
      weights: For each stage the weights that pass its first barrier (rule 11).
    """

    def __init__(
        self,
        graph: Graph,
        plan: GraphPlan,
        writer: StepWriter,
        availability: Availability,
        transfers: Transfers,
        updates: UpdateRunner,
        barriers: BackwardBarriers,
    ):
        self._graph, self._plan, self._writer, self._barriers = graph, plan, writer, barriers
        self._availability, self._transfers, self._updates = availability, transfers, updates
        self.initialisers = graph.once(initialiser_dependencies) if availability.dropped else {}
        self._clones: dict[tuple[int, int, int | None], _Clones] = {}
        """By stage, or ~value for a value that is recomputed by itself, by visit, and by the loop in whose body."""
        self._dropped_of: defaultdict[int, list[int]] = defaultdict(list)
        """By stage the values that it has to recompute."""
        for value in sorted(availability.dropped):
            self._dropped_of[self._stage_of(value)].append(value)
        self._unopened: dict[tuple[int, int, int | None], dict[int, list[int]]] = {}
        """By stage, visit and body, for each value that is recomputed in a group which is not open yet, the group."""
        self.weights = weights_of_stages(graph, plan.stages) if availability.dropped else {}
        self._last_readers = 0, 0
        """The readers of the last two barriers that small gradients passed (rule 9), the earlier one first."""

    @cached_property
    def accumulators(self) -> GradAccumulators:
        """Running sums of gradients (rule 9); computed only where something is recomputed."""
        return self._graph.once(GradAccumulators)

    def operands(self, op: Op) -> tuple[int, ...]:
        """The instances that an op after the forward pass reads."""
        if op.primitive in BODY_OUTPUTS:
            return tuple(self._writer.current[v] for v in op.reads)
        if op.primitive in BODY_INPUTS:
            return self._operands_from_outside(op, op.id)
        reads = tuple(self._operand(v, op.id) for v in op.reads)
        if op.id in self._barriers.renamed_for:  # a barrier has passed what operands before are made of
            reads = tuple(self._operand(v, op.id) for v in op.reads)
        return reads

    def prepare(self, loop: int) -> None:
        """Loads or recomputes, before a loop begins, the values from outside of it that its body needs (rule 7)."""
        graph, availability = self._graph, self._availability
        depth = len(graph.path(loop))
        ops = [op for op in graph.ops if op.phase is not Phase.FORWARD and loop in graph.path(op.loop)]
        with self._writer.within(graph.loops[loop].parent):
            missing = self._missing_in(loop, ops)
            loop_inputs = self._loop_inputs(loop, ops, missing)
            for value in sorted(v for v in missing if availability.depth(v) < depth):
                if value in loop_inputs or not availability.is_broadcast(value):
                    self._operand(value, ops[0].id)

    def _loop_inputs(self, loop: int, ops: Sequence[Op], missing: Collection[int]) -> set[int]:
        """Initial carries and scanned arrays that a body reads, those of its clones' slices too."""
        graph, depth = self._graph, len(self._graph.path(loop))
        sliced = (v for v in graph.slices.intersection(missing) if self._availability.depth(v) == depth)
        entries = [op for op in ops if op.loop == loop and op.primitive in BODY_INPUTS]
        return {v for op in (*entries, *(graph.ops[self._producer(s)] for s in sliced)) for v in op.reads}

    def _missing_in(self, loop: int, ops: Sequence[Op]) -> set[int]:
        """Values that clones in a body have to make; loads the transferred ones from outside that are found."""
        graph, availability = self._graph, self._availability
        depth = len(graph.path(loop))
        missing: set[int] = set()
        pending = [v for op in ops for v in op.reads]
        while pending:
            value = pending.pop()
            if value in self._transfers.values and availability.depth(value) < depth:
                self._operand(value, ops[0].id)
            producer = graph.producer[value]
            if producer is not None and value not in missing and not availability.is_available(value, loop):
                missing.add(value)
                pending.extend(graph.ops[producer].reads)
        return missing

    def _operand(self, value: int, reader: int) -> int:
        """The instance of a value that an op after the forward pass reads, or a clone for it."""
        if value in self._transfers.values:
            return self._transfers.loaded(value, reader)
        if value in self._barriers.weights and self._graph.ops[reader].phase is Phase.BACKWARD:
            return self._barriers.weights[value]
        if self._availability.is_available(value, self._writer.loop):
            return self._writer.current[value]
        return self._sliced(value, reader) if value in self._graph.slices else self._recomputed(value, reader)

    def _operands_from_outside(self, op: Op, reader: int) -> tuple[int, ...]:
        """Operands of an op that reads what stands around the body that is written: made before the loop begins."""
        writer, body = self._writer, self._writer.loop
        with writer.within(None if body is None else self._graph.loops[body].parent):
            available = {v for v in op.reads if self._availability.is_available(v, body)}
            return tuple(writer.current[v] if v in available else self._operand(v, reader) for v in op.reads)

    def _sliced(self, value: int, reader: int) -> int:
        """A slice of a scanned array, cut in the body that is written: another loop cut it before."""
        body = self._availability.body_for(value, self._writer.loop)
        clones = self._clones.setdefault((~value, 0, body), _Clones())
        if value not in clones.instances:
            op = self._graph.ops[self._producer(value)]
            clones.instances.update(zip(op.reads, self._operands_from_outside(op, reader), strict=True))
            self._clone(op.id, clones)
        return clones.instances[value]

    def _recomputed(self, value: int, reader: int) -> int:
        clones = self._clones_for(value, reader)
        if value not in clones.instances:
            ops, sources = self._backward_slice([value], known=clones.instances)
            self._read_sources(ops, sources, clones, reader)
            for op in sorted(ops - clones.ops):
                self._clone(op, clones)
        return clones.instances[value]

    def _clones_for(self, value: int, reader: int) -> _Clones:
        """The clones that a value belongs to: those of its stage, which opens now if need be, or its own (rule 3)."""
        availability = self._availability
        body = availability.body_for(value, self._writer.loop)
        stage = self._stage_in(value, body)
        visit = 0 if body is not None else bisect_right(self._visits.get(stage, ()), reader)
        key = stage, visit, body
        if key not in self._unopened:
            self._unopened[key] = self._groups(*key)
        group = self._unopened[key].get(value, [])
        is_repeated = availability.depth(value) < len(self._graph.path(body))
        if is_repeated or (group and value in self._graph.once(made_of_arguments)):
            return self._clones.setdefault((~value, 0, body), _Clones())
        clones = self._clones.setdefault(key, _Clones())
        if group:
            self._open(group, clones, reader)
            for member in group:
                del self._unopened[key][member]
        return clones

    @cached_property
    def _visits(self) -> dict[int, list[int]]:
        """By stage the ops with which the second and later visits of the backward to it begin (rule 4)."""
        graph = self._graph
        reads = sorted(
            (op, stage)
            for stage, values in self._dropped_of.items()
            for op in {op for v in values for op in graph.readers[v]}
            if graph.ops[op].phase is not Phase.FORWARD and graph.ops[op].loop is None
        )
        stages = [stage for _, stage in reads]
        counts = Counter(stages)
        last: dict[int, int] = {}
        found = defaultdict[int, list[int]](list)
        for at, (op, stage) in enumerate(reads):
            if _are_visited(stages[last.get(stage, at) + 1 : at], counts):
                found[stage].append(op)
            last[stage] = at
        return found

    def _groups(self, stage: int, visit: int, body: int | None) -> dict[int, list[int]]:
        """For each dropped value of a stage the values that are recomputed behind one barrier with it (rule 3)."""
        graph = self._graph
        dropped = [v for v in self._dropped_of[stage] if self._is_read_in(body, v)]
        if body is None and (begins := self._visits.get(stage)):
            dropped = [v for v in dropped if any(bisect_right(begins, op) == visit for op in graph.readers[v])]
        ops, _ = self._backward_slice(dropped)
        accesses = ((op, v) for op in ops for v in (*graph.ops[op].reads, *graph.ops[op].writes))
        _, component = connected_components((op, v) for op, v in accesses if graph.producer[v] is not None)
        members = defaultdict[int, list[int]](list)
        for value in dropped:
            members[component[value]].append(value)
        together = defaultdict[Hashable, list[int]](list)
        started: Hashable = None
        """The group that starts last before the next one."""
        for reader, of_component in sorted((self._first_reader(group), c) for c, group in members.items()):
            is_of_chain = graph.ops[reader].phase is Phase.BACKWARD and graph.ops[reader].loop is None
            group = members[of_component]
            if not (is_of_chain and started is not None and self._is_small(group, reader)):
                started = ("after", graph.last_in_memory[reader]) if is_of_chain else of_component
            together[started] += group
        return {v: group for group in together.values() for v in group}

    def _first_reader(self, values: Iterable[int]) -> int:
        """The first op after the forward pass that reads one of some values."""
        first_reads = (self._graph.first_read_after_forward[v] for v in values)
        return min(op for op in first_reads if op is not None)

    def _is_small(self, values: Iterable[int], reader: int) -> bool:
        """True if values are small against the frontier of the backward, which a barrier writes to memory."""
        sizes, frontier = self._graph.values, self._graph.backward_frontier[reader]
        return frontier is not None and sum(sizes[v].size_bytes for v in values) <= _SMALL * sizes[frontier].size_bytes

    def _stage_in(self, value: int, body: int | None) -> int:
        """The stage that recomputes a value; in a branch of another cond all stages are one.

        No barrier keeps clones of two stages apart there, so a compiler would merge them.
        """
        in_branch = body is not None and self._graph.loops[body].branch is not None
        return _OF_BRANCH if in_branch and body != self._graph.loop_of[value] else self._stage_of(value)

    def _stage_of(self, value: int) -> int:
        return stage_at(self._plan.stages, self._producer(value))

    def _open(self, group: Collection[int], clones: _Clones, reader: int) -> None:
        """Starts a group behind one barrier: everything that it has to recompute by now begins there.

        Forward ops can stand behind the first backward op, where a step takes two gradients or counts its steps. Their
        results do not exist yet, and wait for their own reader. Values of arguments alone that were recomputed by
        themselves may have no reader left: their weights must not pass the barrier beside the new weights, or XLA
        copies those.
        """
        readers = self._graph.readers
        wanted = [v for v in group if self._producer(v) < reader <= readers[v][-1]]
        self._read_sources(*self._backward_slice(wanted), clones, reader)

    def _read_sources(self, ops: Collection[int], sources: Collection[int], clones: _Clones, reader: int) -> None:
        """Passes the sources of clones through a barrier with the frontier of the backward (rules 3, 9, 11 and 12).

        In the body of another loop than that of the ops no barrier is needed (rule 7), and without sources none.
        """
        # One function: which instances pass, and under which names, depends on each other.
        if not sources:
            return
        writer, graph = self._writer, self._graph
        in_loop = writer.loop is not None and graph.loops[writer.loop].rolled
        repeated = arguments_only_broadcast(graph, ops)
        waiting = sorted(set(sources) - repeated)
        instances = {v: self._operand(v, reader) for v in waiting}
        if instances and not (in_loop and all(graph.ops[op].loop != writer.loop for op in ops)):
            self._barriers.write_postponed()  # results of the backward, which pass, may be among them
            passing = writer.loop is None
            has_copies = bool(self._transfers.values or self._plan.copies)
            sums = self._sums_passing(reader) if passing else []
            if passing and not (graph.mesh or has_copies):
                sums += sorted(graph.results.intersection(self._updates.run_before(reader, only_large=True)))
            elif passing:
                sums += self._transfers.results_before_stage(reader)
            stage = self._stage_of(graph.ops[max(ops)].writes[0])
            of_stage = self.weights.get(stage, ()) if passing else ()
            weights = set(of_stage).difference(repeated, self._barriers.weights)
            others = sorted(weights.difference(instances))
            passed = self._barriers.pass_on(
                (*instances.values(), *(writer.current[v] for v in others)),
                sums,
                reader=reader,
                why="recompute",
                postpones_sums=passing and graph.ops[reader].loop is None and not has_copies,
            )
            all_passed = dict(zip((*instances, *others), passed, strict=True))
            instances = {v: all_passed[v] for v in instances}
            self._barriers.weights.update((v, all_passed[v]) for v in weights)
        clones.instances.update(instances)

    def _sums_passing(self, reader: int) -> list[int]:
        """Running sums, and small gradients that pass no barrier before, computed before an op (rule 9)."""
        before_last, last = self._last_readers
        self._last_readers = last, max(reader, last)
        finished = self.accumulators.finished_at(reader, last=last, before_last=before_last)
        frontier = self._graph.backward_frontier[reader]  # passes in any case
        return [*finished, *(v for v in self.accumulators.live_at(reader) if v != frontier)]

    def _backward_slice(self, wanted: Collection[int], known: Collection[int] = ()) -> tuple[set[int], set[int]]:
        """The ops of one body that have to run again for some values, and the values that they start from."""
        graph, ops, sources = self._graph, set[int](), set[int]()
        is_source = self._availability.is_kept
        if graph.loops:
            is_source = partial(self._is_source, max(map(self._availability.depth, wanted), default=0))
        pending = [v for v in wanted if v not in known]
        while pending:
            op = graph.producer[pending.pop()]
            assert op is not None, _HAS_PRODUCER
            if op in ops:
                continue
            ops.add(op)
            for read in graph.ops[op].reads:
                if read not in known:  # initialisers are made anew, whatever the plan saves
                    is_saved = is_source(read) and graph.producer[read] not in self.initialisers
                    sources.add(read) if is_saved else pending.append(read)
        return ops, sources

    def _is_source(self, depth: int, value: int) -> bool:
        """False if a value is recomputed together with its readers, in a body of this depth."""
        if value in self._graph.slices or self._availability.depth(value) != depth:
            return True
        return self._availability.is_available(value, self._writer.loop)

    def _clone(self, op: int, clones: _Clones) -> None:
        clones.ops.add(op)
        writer, own, instances = self._writer, self._graph.ops[op], clones.instances
        reads = tuple([instances[v] if v in instances else writer.current[v] for v in own.reads])
        writes = tuple(map(writer.new_instance, own.writes))
        after = None
        if (awaited := self.initialisers.get(op)) is not None:  # the first instance has passed the clones' barrier
            after = instances.get(awaited, next(iter(instances.values()), None))
        writer.steps.append(Run(op=op, reads=reads, writes=writes, is_clone=True, loop=writer.loop, after=after))
        if not self._graph.once(largest_elements).isdisjoint(own.writes):
            writes = writer.barrier(writes, why="pin")
        for value, instance in zip(own.writes, writes, strict=True):
            instances.setdefault(value, instance)

    def _is_read_in(self, body: int | None, value: int) -> bool:
        """True if a value is recomputed in a loop's body itself (outside of all for None) for an op there."""
        if self._availability.depth(value) != len(self._graph.path(body)):
            return False
        readers = (self._graph.ops[reader] for reader in self._graph.readers[value])
        return any(
            op.phase is not Phase.FORWARD and (body is None or body in self._graph.path(op.loop)) for op in readers
        )

    def _producer(self, value: int) -> int:
        op = self._graph.producer[value]
        assert op is not None, _HAS_PRODUCER
        return op
