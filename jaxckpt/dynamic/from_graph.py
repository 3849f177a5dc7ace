"""A traced step as the program that an eager framework would run: every value in memory, freed after its last reader.

Nothing is fused and nothing is left out. Reshapes share their operand's storage. The last elementwise reader of a
donated argument makes its new state, as an optimiser does with a parameter, and so does the last one of that state,
up to the result that takes the argument's place. Read after `program`.
"""

from collections.abc import Iterator, Sequence

from jaxckpt.cost.rates import Rates
from jaxckpt.dynamic.program import Call, Constant, Keep, Note, Program, Release, RunCall, Statement, Tensor
from jaxckpt.dynamic.training import state_of, trained
from jaxckpt.ir import Graph, Kind, Op, Phase

VIEWS = frozenset({"reshape", "squeeze", "expand_dims", "stop_gradient", "name", "pvary"})
"""Primitives whose result an eager framework keeps in its operand's memory."""


def program_from_graph(
    graph: Graph, *, prices: Sequence[float] | None = None, views: frozenset[str] = VIEWS, steps: int = 1
) -> Program:
    """The program that an eager framework would run for a traced step.

    Args:
      graph: The step.
      prices: Of each op; by default the bytes that it reads and writes, and nothing for one that makes a view.
      views: Primitives whose result is kept in the memory of their operand.
      steps: How many training steps one after the other, the donated arguments of each being results of the one before.

    Returns:
      A program with one call for each op, in traced order. Results are kept at the end; donated arguments go at
      their release, all others stay for good. An op that writes nothing is given an empty result.
    """
    writer = _ProgramWriter(graph, prices or [_traffic_bytes(graph, op, views) for op in graph.ops], views)
    one = writer.program()
    if steps == 1:
        return one
    state = {writer.ids[old]: writer.ids[new] for old, new in state_of(graph).items()}
    return trained(one, steps=steps, state=state)


class _ProgramWriter:
    """Collects tensors, calls and steps while it walks the graph."""

    def __init__(self, graph: Graph, prices: Sequence[float], views: frozenset[str]):
        self.graph = graph
        self.views = views
        self.prices = prices
        self.ids: dict[int, int] = {}
        self.tensors: list[Tensor] = []
        self.calls: list[Call] = []
        self.last_reader = {v: op.id for op in graph.ops for v in (*op.writes, *op.reads)}
        self.states = set(graph.donated)
        self.results = dict.fromkeys(graph.outputs)

    def program(self) -> Program:
        steps: list[Statement] = [*self._arguments()]
        first_backward = next((op.id for op in self.graph.ops if op.phase is Phase.BACKWARD), None)
        for op in self.graph.ops:
            steps += [Note("BACKWARD")] if op.id == first_backward else []
            steps += self._call(op)
        steps += [Keep(self.ids[v]) for v in self.results]
        return Program(tensors=tuple(self.tensors), calls=tuple(self.calls), steps=tuple(steps))

    def _arguments(self) -> Iterator[Statement]:
        for v in dict.fromkeys((*self.graph.inputs, *self.graph.constants)):
            donated = v in self.graph.donated
            yield Constant(self._tensor(v), lent=not donated)
            if donated and v not in self.last_reader and v not in self.results:
                yield Release(self.ids[v])

    def _call(self, op: Op) -> Iterator[Statement]:
        reads = tuple(self.ids[v] for v in op.reads)
        viewed = reads[0] if op.primitive in self.views and len(reads) == len(op.writes) == 1 else None
        writes = tuple(self._tensor(v, viewed) for v in op.writes) or (self._empty(op),)
        self.calls.append(
            Call(
                name=op.primitive,
                price=self.prices[op.id],
                reads=reads,
                writes=writes,
                once=bool(op.effects),
                dense=op.kind is Kind.CONTRACTION,
                replaces=self._replaced(op),
            )
        )
        yield RunCall(len(self.calls) - 1)
        dying = (v for v in dict.fromkeys((*op.reads, *op.writes)) if self.last_reader[v] == op.id)
        yield from (Release(self.ids[v]) for v in dying if v not in self.results)
        yield from (Release(t) for t in writes if not op.writes)

    def _replaced(self, op: Op) -> tuple[int | None, ...]:
        """The donated argument, or its state so far, that the op is the last to read and whose type its result has."""
        if op.kind is not Kind.ELEMENTWISE or len(op.writes) != 1:
            return ()
        made = str(self.graph.values[op.writes[0]])
        for v in dict.fromkeys(op.reads):
            dies = self.last_reader[v] == op.id and v in self.states and v not in self.results
            if dies and str(self.graph.values[v]) == made:
                self.states.add(op.writes[0])
                return (self.ids[v],)
        return ()

    def _tensor(self, value: int, viewed: int | None = None) -> int:
        made = self.graph.values[value]
        size = 0 if viewed is not None else made.size_bytes
        self.tensors.append(Tensor(name=made.name or f"v{value}", size_bytes=size, view_of=viewed))
        self.ids[value] = len(self.tensors) - 1
        return self.ids[value]

    def _empty(self, op: Op) -> int:
        self.tensors.append(Tensor(name=f"done{op.id}", size_bytes=0))
        return len(self.tensors) - 1


def eager_seconds(graph: Graph, rates: Rates, *, views: frozenset[str] = VIEWS) -> list[float]:
    """Seconds of each op run alone, the longer of its traffic and its arithmetic; nothing for `views`.

    No compiler fuses anything here, so their sum is more than a compiled step takes.
    """
    return [_eager_s(graph, op, rates, views) for op in graph.ops]


def _eager_s(graph: Graph, op: Op, rates: Rates, views: frozenset[str]) -> float:
    if op.primitive in views:
        return 0.0
    arrays = [graph.values[v] for v in (*op.reads, *op.writes)]
    traffic_s = (sum(a.size_bytes for a in arrays) + op.traffic_bytes) / rates.memory_bandwidth_bytes_per_s
    work_s = (op.flops or 0) / rates.matmul(arrays[-1].dtype) if arrays else 0.0
    return rates.launch_s + max(traffic_s, work_s)


def _traffic_bytes(graph: Graph, op: Op, views: frozenset[str]) -> float:
    if op.primitive in views:
        return 0.0
    return float(sum(graph.values[v].size_bytes for v in (*op.reads, *op.writes)))
