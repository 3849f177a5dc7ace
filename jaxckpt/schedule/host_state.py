"""Optimiser state that is in host memory between steps and passes through the update in groups.

A group is the state of one parameter, or of several whose updates depend on each other. The schedule of group i:

    barrier [cotangent, state i, gradients i, state i + 1 on the host, stored state i - 1]
    load state i + 1    update i    barrier [cotangent, new parameters i]    store new state i

Behind the first barrier XLA knows that the old parameters are read no longer, so that the new ones take their memory,
and at most two groups are on the device: XLA would load all state with the step. The second barrier holds the backward
until the update is over: XLA would run all updates at the end. A copy has the time between the gradients of two groups.
The first group is loaded behind its own gradients. Small groups are prefetched together (`_PREFETCHED`).

State is an argument that only the update reads, and of which it makes a result of the same type. Such results are told
apart by what they depend on: of Adam's results only the new momentum depends on the momentum alone, and the new
parameter depends on the parameter too.

Read after `updates`. Complexity: arguments times ops of the update.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from jaxckpt._errors import UnsupportedDecisionError
from jaxckpt.ir import Graph, GraphPlan, Kind, Offload, Phase
from jaxckpt.schedule.components import connected_components
from jaxckpt.schedule.steps import Move, StepWriter
from jaxckpt.schedule.updates import LARGE_BYTES, EarlyUpdates, UpdateRunner

_ON_HOST = Offload()
_PREFETCHED = 1 / 16
"""The share of the state on the host that is prefetched, or being stored, where groups are small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateGroup:
    """State whose update runs together.

    Attributes:
      results: For each argument the result that takes over its memory.
      ops: Ops of the update that depend on the arguments.
      gradients: Values of the backward, as large as an argument, that the update reads.
      after: The backward op that finishes the last gradient, or the last op that reads the parameter: while the step
        reads it, its memory cannot be taken by the new one.
    """

    results: Mapping[int, int]
    ops: frozenset[int]
    gradients: tuple[int, ...]
    after: int


def is_large(graph: Graph, value: int) -> bool:
    """True if a value is worth a copy of its own."""
    return graph.values[value].size_bytes >= LARGE_BYTES


class StateGroups:
    """The groups of a graph, those whose gradients are finished first before the others; the same for all plans."""

    def __init__(self, graph: Graph):
        self._graph = graph
        self._updates = graph.once(EarlyUpdates)
        self._behind = {v: self._ops_behind(v) for v in graph.inputs if is_large(graph, v)}
        results = self._results()
        state = [v for v in results if self._is_only_updated(v)]
        _, component = connected_components((op, v) for v in state for op in self._behind[v])
        members = defaultdict[int, list[int]](list)
        for value in state:
            members[component[value]].append(value)
        groups = (self._group({v: results[v] for v in group}) for group in members.values())
        self.groups = tuple(sorted((group for group in groups if group is not None), key=lambda group: group.after))

    @property
    def donated(self) -> tuple[int, ...]:
        """All arguments that can be in host memory and whose memory their results take over, group by group."""
        donated = self._graph.donated
        return tuple(argument for group in self.groups for argument in group.results if argument in donated)

    def _is_only_updated(self, value: int) -> bool:
        return value not in self._graph.results and self._graph.updates.issuperset(self._graph.readers[value])

    def _ops_behind(self, value: int) -> frozenset[int]:
        """Ops of the update that depend on an argument within the update."""
        graph, found = self._graph, set[int]()
        pending = [value]
        while pending:
            for op in graph.readers[pending.pop()]:
                if op in graph.updates and op not in found:
                    found.add(op)
                    pending.extend(graph.ops[op].writes)
        return frozenset(found)

    def _results(self) -> dict[int, int]:
        """For arguments the results that take over their memory, parameters first: those of fewest other arguments."""
        graph = self._graph
        of_type = defaultdict[tuple[object, ...], list[int]](list)
        for output in dict.fromkeys(graph.outputs):
            of_type[self._type(output)].append(output)
        depends = {
            argument: [v for v in of_type[self._type(argument)] if graph.producer[v] in ops]
            for argument, ops in self._behind.items()
        }
        arguments_of = defaultdict[int, int](int)
        for outputs in depends.values():
            for output in outputs:
                arguments_of[output] += 1

        def fewest(argument: int) -> tuple[bool, int]:
            return self._is_only_updated(argument), min((arguments_of[v] for v in depends[argument]), default=0)

        found: dict[int, int] = {}
        for argument in sorted(depends, key=fewest):
            free = [v for v in depends[argument] if v not in found.values()]
            if free:
                found[argument] = min(free, key=arguments_of.__getitem__)
        return found

    def _type(self, value: int) -> tuple[object, ...]:
        array = self._graph.values[value]
        return array.shape, array.dtype, array.split

    def _group(self, results: dict[int, int]) -> StateGroup | None:
        """The group of some state; None if its update cannot run as soon as a gradient is finished."""
        graph, updates = self._graph, self._updates
        ops = frozenset(op for argument in results for op in self._behind[argument])
        sizes = {graph.elements(argument) for argument in results}
        needed = sorted(updates.with_needed(ops))
        reads = dict.fromkeys(v for op in needed for v in graph.ops[op].reads)
        gradients = tuple(v for v in reads if self._is_of_backward(v) and graph.elements(v) in sizes)
        parameters = (v for v in reads if v in graph.inputs and v not in results)
        after = max((updates.after[op] for op in ops), default=inf)
        after = max((after, *(self._last_read(v) for v in parameters)))
        if not gradients or not 0 <= after < inf:
            return None
        return StateGroup(results=results, ops=ops, gradients=gradients, after=int(after))

    def _last_read(self, parameter: int) -> int:
        """The last op before the update that reads a parameter, or what casts and views make of it."""
        graph, last = self._graph, -1
        pending, seen = [parameter], {parameter}
        while pending:
            for op in (graph.ops[reader] for reader in graph.readers[pending.pop()] if reader not in graph.updates):
                last = max(last, op.id)
                if op.kind in (Kind.VIEW, Kind.ELEMENTWISE) and len(op.reads) == 1:
                    pending.extend(v for v in op.writes if v not in seen)
                    seen.update(op.writes)
        return last

    def _is_of_backward(self, value: int) -> bool:
        producer = self._graph.producer[value]
        return producer is not None and producer not in self._graph.updates


class HostState:
    """Moves the state of one schedule that a plan has in host memory."""

    def __init__(self, graph: Graph, plan: GraphPlan, writer: StepWriter, updates: UpdateRunner):
        self._graph, self._writer, self._updates = graph, writer, updates
        self._arguments = frozenset(plan.host_arguments)
        groups = graph.once(StateGroups).groups if self._arguments else ()
        _require_state(self._arguments, groups)
        self._groups = [group for group in groups if not self._arguments.isdisjoint(group.results)]
        self._sizes = [graph.size_bytes(self._state(group)) for group in self._groups]
        self._prefetched_bytes = int(_PREFETCHED * sum(self._sizes))
        self._loaded = self._written = self._stored = 0
        """How many groups are loaded, have new state, and are known to be stored."""
        self._summed = 0
        """The op until which small gradients have passed barriers."""
        updates.held.update(op for group in self._groups for op in group.ops)

    def before(self, op: int) -> None:
        """Writes the groups whose gradients are finished before an op."""
        while self._written < len(self._groups) and self._groups[self._written].after < op:
            self._write(self._groups[self._written], op)

    def _write(self, group: StateGroup, reader: int) -> None:
        """Runs the update of a group, whose state is loaded, and stores its new state; loads the next groups' state."""
        graph = self._graph
        waited = self._groups[self._stored : self._least_stored()]
        loading = self._groups[self._loaded : self._most_loaded()]
        arrived = self._arrived(reader)
        self._pass(
            (
                *arrived,
                *self._state(group),
                *group.gradients,
                *(v for each in loading if each is not group for v in self._state(each)),
                *(v for each in waited for v in self._new_state(each)),
            )
        )
        self._copy((v for each in loading for v in self._state(each)), restores=True)
        self._updates.run(group.ops, reader)
        if arrived:
            written = {v for op in group.ops for v in graph.ops[op].writes}
            parameters = written.intersection(graph.outputs).difference(self._new_state(group))
            self._pass((*arrived, *sorted(parameters), *self._small_gradients(reader)))
        self._copy(self._new_state(group), restores=False)
        self._written += 1
        self._stored += len(waited)
        self._loaded += len(loading)

    def _arrived(self, reader: int) -> tuple[int, ...]:
        """The value that the backward goes on with from an op; () where it goes on with none outside of loops."""
        graph, frontier = self._graph, self._graph.backward_frontier[reader]
        if frontier is None or graph.ops[reader].phase is not Phase.BACKWARD or graph.loop_of[frontier] is not None:
            return ()
        return (frontier,)

    def _small_gradients(self, reader: int) -> list[int]:
        """Gradients since the last barrier that are too small to be in a group, such as those of biases.

        XLA would postpone them to their updates, and keep the large arrays that they are sums of.
        """
        graph, begin, self._summed = self._graph, self._summed, reader
        ops = (op for op in graph.ops[begin:reader] if op.phase is Phase.BACKWARD and op.loop is None)
        written = (v for op in ops for v in op.writes)
        return [v for v in written if not is_large(graph, v) and not graph.updates.isdisjoint(graph.readers[v])]

    def _most_loaded(self) -> int:
        """Groups that are to be loaded by now: the next one, and as many more as may be prefetched."""
        following = accumulate(self._sizes[self._written + 1 :])
        further = sum(1 for size_bytes in following if size_bytes <= self._prefetched_bytes)
        return min(len(self._groups), self._written + 1 + max(1, further))

    def _least_stored(self) -> int:
        """Groups whose store is to be over by now: all but the last ones that may be stored beside this group."""
        room_bytes = self._prefetched_bytes - self._sizes[self._written]
        pending = accumulate(reversed(self._sizes[self._stored : self._written]))
        return self._written - sum(1 for size_bytes in pending if size_bytes <= room_bytes)

    def _state(self, group: StateGroup) -> list[int]:
        """The arguments of a group that are in host memory."""
        return [v for v in group.results if v in self._arguments]

    def _new_state(self, group: StateGroup) -> list[int]:
        return [group.results[argument] for argument in self._state(group)]

    def _pass(self, values: Iterable[int]) -> None:
        """Passes the latest instances of values through a barrier, which waits for those that are being copied."""
        writer, passing = self._writer, tuple(dict.fromkeys(values))
        passed = writer.barrier([writer.current[v] for v in passing], why="store")
        for value, instance in zip(passing, passed, strict=True):
            writer.current[value] = instance

    def _copy(self, values: Iterable[int], *, restores: bool) -> None:
        writer = self._writer
        for value in values:
            reads, writes = (writer.current[value],), (writer.new_instance(value),)
            writer.steps.append(Move(reads=reads, writes=writes, decision=_ON_HOST, restores=restores))
            (writer.current[value],) = writes


def _require_state(arguments: Collection[int], groups: Iterable[StateGroup]) -> None:
    known = {argument for group in groups for argument in group.results}
    if wrong := sorted(set(arguments) - known):
        raise UnsupportedDecisionError(
            f"schedule: {len(wrong)} of {len(arguments)} arguments cannot be in host memory.",
            got=f"host_arguments with {', '.join(map(str, wrong))}",
            needed=f"arguments that only the update reads, of which it makes a result: {', '.join(map(str, known))}",
            advice="leave them out of the plan, or plan again",
            decisions=(_ON_HOST,),
        )
