"""A step as the kernels that it compiles to, for the dynamic engine: what is fused is one call, and takes no bytes.

Read after `jaxckpt.solve.problem` and `jaxckpt.dynamic.program`.
"""

from dataclasses import replace

from jaxckpt.dynamic.program import Call, Constant, Keep, Program, Release, RunCall, Statement, Tensor
from jaxckpt.dynamic.training import state_of, trained
from jaxckpt.ir import Kind
from jaxckpt.solve.problem import Problem


def program_of_kernels(problem: Problem) -> Program:
    """The step as the kernels that it compiles to, over the values that they write to memory.

    Returns:
      A call for each op that writes to memory, named by the op's id and priced by its kernel's nanoseconds, beside
      which what DTE adds to costs and times is nothing, as meant. Arguments are not in it: they are always there.
      Results are kept at the end, and have no bytes.
    """
    return _KernelCalls(problem, with_arguments=False).program()


def training_of_kernels(problem: Problem, *, steps: int) -> Program:
    """Several training steps as kernels, parameters and what updates them with all else in one memory.

    Calls are those of `program_of_kernels`. Donated arguments of each step are results of the one before. Arguments are
    constants; a result takes over the memory of the donated argument whose place it takes, where its kernel is the last
    to read that.
    """
    kernels = _KernelCalls(problem, with_arguments=True)
    one, ids = kernels.program(), kernels.ids
    state = {ids[old]: ids[new] for old, new in state_of(problem.graph).items() if new in ids}
    return trained(one, steps=steps, state=state)


class _KernelCalls:
    """Collects tensors, calls and steps while it walks the graph, with arguments and results or without."""

    def __init__(self, problem: Problem, *, with_arguments: bool):
        graph, fusion = problem.graph, problem.fusion
        self.problem = problem
        self.arguments = dict.fromkeys((*graph.inputs, *graph.constants)) if with_arguments else {}
        self.results = {source for v in graph.outputs for source in fusion.sources[v]}
        self.written = [(op, tuple(v for v in op.writes if v in fusion.materialised)) for op in graph.ops]
        self.written = [(op, values) for op, values in self.written if values]
        self.ids: dict[int, int] = {}
        self.tensors: list[Tensor] = []

    def program(self) -> Program:
        """One step."""
        donated = self.problem.graph.donated
        steps: list[Statement] = [Constant(self._tensor(v), lent=v not in donated) for v in self.arguments]
        calls = self._calls()
        steps += self._in_order(calls)
        steps += [Keep(self.ids[v]) for v in self._kept()]
        return Program(tensors=tuple(self.tensors), calls=tuple(calls), steps=tuple(steps))

    def _tensor(self, value: int) -> int:
        outside = not self.arguments and value in self.results
        size_bytes = 0 if outside else self.problem.graph.values[value].size_bytes
        self.tensors.append(Tensor(name=str(value), size_bytes=size_bytes))
        self.ids[value] = len(self.tensors) - 1
        return self.ids[value]

    def _kept(self) -> list[int]:
        return [v for v in dict.fromkeys(self.results) if v in self.ids and v not in self.arguments]

    def _calls(self) -> list[Call]:
        problem, calls = self.problem, []
        for op, written in self.written:
            sources = dict.fromkeys(s for v in op.reads for s in problem.fusion.sources[v] if s in self.ids)
            calls.append(
                Call(
                    name=str(op.id),
                    price=1e9 * problem.op_s[op.id],
                    reads=tuple(self.ids[s] for s in sources),
                    writes=tuple(self._tensor(v) for v in written),
                    once=bool(op.effects),
                    dense=op.kind is Kind.CONTRACTION,
                )
            )
        return calls

    def _in_order(self, calls: list[Call]) -> list[Statement]:
        """Runs all calls, each followed by the releases of what it was the last to read; says what replaces what."""
        graph, steps = self.problem.graph, list[Statement]()
        last = {t: i for i, call in enumerate(calls) for t in (*call.writes, *call.reads)}
        stay = {self.ids[v] for v in (*self._kept(), *(v for v in self.arguments if v not in graph.donated))}
        stay |= {self.ids[v] for v in self.arguments if v in self.results}
        old = {self.ids[n]: self.ids[o] for o, n in state_of(graph).items() if n in self.ids and o in self.ids}
        for i, call in enumerate(calls):
            dying = [t for t in dict.fromkeys((*call.writes, *call.reads)) if last[t] == i and t not in stay]
            taken = tuple(old.get(t) if old.get(t) in dying else None for t in call.writes)
            calls[i] = replace(call, replaces=taken) if any(t is not None for t in taken) else call
            steps += [RunCall(i), *map(Release, dying)]
        return steps
