"""A traced step as the program that an eager framework would run: every value in memory, freed after its last reader.

Nothing is fused and nothing is left out. Reshapes share their operand's storage. The last elementwise reader of a
donated argument makes its new state, as an optimiser does with a parameter, and so does the last one of that state,
up to the result that takes the argument's place.

`trained` makes several training steps of one, each of which begins with what the one before leaves as its state: one
step says little about memory with addresses. Parameters lie where they were first put, side by side; only when they
are updated do they move, and what stays for good then lies between what comes and goes. Read after `program`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxckpt.cost.rates import Rates
from jaxckpt.dynamic.program import Call, Constant, Keep, Note, Program, ProgramWriter, Release, RunCall, Statement
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

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> from jaxckpt import dynamic
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> args = jnp.eye(8), jnp.ones((64, 8))
      >>> graph = jaxckpt.Planner(step, *args, target="cpu").graph
      >>> program = dynamic.program_from_graph(graph)
      >>> len(program.calls) == len(graph.ops)
      True
      >>> dynamic.min_budget(program, evictor="dtr") < dynamic.unlimited_bytes(program)
      True
    """
    one, ids = write_graph(graph, prices=prices, views=views)
    if steps == 1:
        return one
    return trained(one, steps=steps, state={ids[old]: ids[new] for old, new in state_of(graph).items()})


def write_graph(
    graph: Graph, *, prices: Sequence[float] | None, views: frozenset[str]
) -> tuple[Program, dict[int, int]]:
    """The program of one step, and the tensor of each value; arguments are those of `program_from_graph`."""
    writer = _GraphWriter(graph, prices or [_traffic_bytes(graph, op, views) for op in graph.ops], views)
    return writer.program(), writer.ids


class _GraphWriter(ProgramWriter):
    def __init__(self, graph: Graph, prices: Sequence[float], views: frozenset[str]):
        super().__init__()
        self.graph = graph
        self.views = views
        self.prices = prices
        self.ids: dict[int, int] = {}
        self.last_reader = {v: op.id for op in graph.ops for v in (*op.writes, *op.reads)}
        self.states = set(graph.donated)
        self.results = dict.fromkeys(graph.outputs)
        self._write_arguments()
        first_backward = next((op.id for op in graph.ops if op.phase is Phase.BACKWARD), None)
        for op in graph.ops:
            self.statements += [Note("BACKWARD")] if op.id == first_backward else []
            self._write_op(op)
        self.statements += [Keep(self.ids[v]) for v in self.results]

    def _write_arguments(self) -> None:
        for v in dict.fromkeys((*self.graph.inputs, *self.graph.constants)):
            donated = v in self.graph.donated
            self.statements.append(Constant(self._write_value(v), lent=not donated))
            if donated and v not in self.last_reader and v not in self.results:
                self.statements.append(Release(self.ids[v]))

    def _write_op(self, op: Op) -> None:
        reads = tuple(self.ids[v] for v in op.reads)
        viewed = reads[0] if op.primitive in self.views and len(reads) == len(op.writes) == 1 else None
        writes = tuple(self._write_value(v, viewed) for v in op.writes)
        empty = () if writes else (self.tensor(f"done{op.id}", 0),)
        self.call(
            Call(
                name=op.primitive,
                price=self.prices[op.id],
                reads=reads,
                writes=writes or empty,
                once=bool(op.effects),
                dense=op.kind is Kind.CONTRACTION,
                replaces=self._replaced(op),
            )
        )
        dying = (v for v in dict.fromkeys((*op.reads, *op.writes)) if self._dies(v, op))
        self.statements += map(Release, (*(self.ids[v] for v in dying), *empty))

    def _dies(self, value: int, op: Op) -> bool:
        return self.last_reader[value] == op.id and value not in self.results

    def _replaced(self, op: Op) -> tuple[int | None, ...]:
        """The donated argument, or its state so far, that the op is the last to read and whose type its result has."""
        if op.kind is not Kind.ELEMENTWISE or len(op.writes) != 1:
            return ()
        made = str(self.graph.values[op.writes[0]])
        for v in dict.fromkeys(op.reads):
            if v in self.states and self._dies(v, op) and str(self.graph.values[v]) == made:
                self.states.add(op.writes[0])
                return (self.ids[v],)
        return ()

    def _write_value(self, value: int, viewed: int | None = None) -> int:
        made = self.graph.values[value]
        size_bytes = 0 if viewed is not None else made.size_bytes
        self.ids[value] = self.tensor(made.name or f"v{value}", size_bytes, viewed)
        return self.ids[value]


def eager_seconds(graph: Graph, rates: Rates, *, views: frozenset[str] = VIEWS) -> list[float]:
    """Seconds of each op run alone, the longer of its traffic and its arithmetic; nothing for `views`.

    No compiler fuses anything here, so their sum is more than a compiled step takes.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> from jaxckpt import dynamic
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> args = jnp.eye(8), jnp.ones((64, 8))
      >>> planner = jaxckpt.Planner(step, *args, target="h200")
      >>> seconds = dynamic.eager_seconds(planner.graph, planner.problem.rates)
      >>> program = dynamic.program_from_graph(planner.graph, prices=seconds)
      >>> program.base_price == sum(seconds)
      True
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
    return float(graph.size_bytes((*op.reads, *op.writes)))


def state_of(graph: Graph) -> dict[int, int]:
    """For each donated argument the result that takes its place: the first of its type that no other one took.

    That is how `jax.jit` pairs them. Arguments that find none are left out.
    """
    waiting: dict[str, list[int]] = {}
    for v in dict.fromkeys(graph.outputs):
        waiting.setdefault(str(graph.values[v]), []).append(v)
    found = {}
    for v in (v for v in graph.inputs if v in graph.donated):
        same = waiting.get(str(graph.values[v]), [])
        if same:
            found[v] = same.pop(0)
    return found


def trained(program: Program, *, steps: int, state: Mapping[int, int]) -> Program:
    """A program repeated, each repetition beginning with the state that the one before has left.

    `state` maps each constant that is updated to the kept tensor that is its new state. Results that are no state are
    dropped after each step but the last; constants that are no state are the same at each step.
    """
    repeated = _Repeated(program, state)
    for number in range(1, steps + 1):
        repeated.add(last=number == steps)
    return repeated.program()


class _Repeated(ProgramWriter):
    def __init__(self, one: Program, state: Mapping[int, int]):
        super().__init__()
        self.one = one
        self.state = state
        self.constants = {each.tensor for each in one.statements if isinstance(each, Constant)}
        self.passed_on = self.constants | set(state.values())
        self.unchanged = self.constants - {old for old, new in state.items() if old != new}
        self.ids: dict[int, int] = {}

    def add(self, *, last: bool) -> None:
        """Adds a step, whose constants are those of the step before, or what became of them."""
        before, self.ids = self.ids, {}
        for t, tensor in enumerate(self.one.tensors):
            if before and t in self.constants:
                self.ids[t] = before[self.state.get(t, t)]
            else:
                view_of = None if tensor.view_of is None else self.ids[tensor.view_of]
                self.ids[t] = self.tensor(tensor.name, tensor.size_bytes, view_of)
        for statement in self.one.statements:
            if not (before and isinstance(statement, Constant)):
                self._add_statement(statement, last=last)

    def _add_statement(self, statement: Statement, *, last: bool) -> None:
        match statement:
            case RunCall(number):
                call = self.one.calls[number]
                replaces = tuple(None if t is None else self.ids[t] for t in call.replaces)
                reads, writes = self._renumbered(call.reads), self._renumbered(call.writes)
                self.call(replace(call, reads=reads, writes=writes, replaces=replaces))
            case Note():
                self.statements.append(statement)
            case Keep(tensor) if not last:
                self.statements += [] if tensor in self.passed_on else [Release(self.ids[tensor])]
            case Release(tensor) if tensor in self.unchanged and not last:
                pass  # it is read again in the next step
            case _:
                self.statements.append(replace(statement, tensor=self.ids[statement.tensor]))

    def _renumbered(self, tensors: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.ids[t] for t in tensors)
