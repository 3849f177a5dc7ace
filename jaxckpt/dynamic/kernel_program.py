"""A step as the kernels that it compiles to, for the dynamic engine: what is fused is one call, and takes no bytes.

Read after `jaxckpt.solve.problem` and `jaxckpt.dynamic.program`.
"""

from dataclasses import replace

from jaxckpt.dynamic.from_graph import state_of, trained
from jaxckpt.dynamic.program import Call, Constant, Keep, Program, ProgramWriter, Release, RunCall
from jaxckpt.ir import Kind
from jaxckpt.solve.problem import Problem


def program_of_kernels(problem: Problem) -> Program:
    """The step as the kernels that it compiles to, over the values that they write to memory.

    Returns:
      A call for each op that writes to memory, named by the op's id and priced in nanoseconds, so that the constants
      which DTE adds to costs and times are negligible. Arguments are left out: they are always in memory. Results are
      kept at the end, and have no bytes.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> from jaxckpt import dynamic
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> args = jnp.eye(8), jnp.ones((64, 8))
      >>> problem = jaxckpt.Planner(step, *args, target="h200").problem
      >>> program = dynamic.program_of_kernels(problem)
      >>> len(program.calls) < len(problem.graph.ops), program.constant_bytes
      (True, 0)
    """
    return _KernelWriter(problem, with_arguments=False).program()


def training_of_kernels(problem: Problem, *, steps: int) -> Program:
    """Several training steps as kernels, parameters and what updates them with all else in one memory.

    Calls are those of `program_of_kernels`. Donated arguments of each step are results of the one before. Arguments are
    constants; a result takes over the memory of the donated argument whose place it takes, where its kernel is the last
    to read that.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> from jaxckpt import dynamic
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> args = jnp.eye(8), jnp.ones((64, 8))
      >>> problem = jaxckpt.Planner(step, *args, target="h200").problem
      >>> one, three = (dynamic.training_of_kernels(problem, steps=steps) for steps in (1, 3))
      >>> len(three.calls) == 3 * len(one.calls), one.constant_bytes
      (True, 2304)
    """
    writer = _KernelWriter(problem, with_arguments=True)
    state = {writer.ids[old]: writer.ids[new] for old, new in state_of(problem.graph).items() if new in writer.ids}
    return trained(writer.program(), steps=steps, state=state)


class _KernelWriter(ProgramWriter):
    """Writes kernels over the values in memory, with arguments and results or without; `ids` are their tensors."""

    def __init__(self, problem: Problem, *, with_arguments: bool):
        super().__init__()
        graph, fusion = problem.graph, problem.fusion
        self.problem = problem
        self.arguments = dict.fromkeys((*graph.inputs, *graph.constants)) if with_arguments else {}
        self.results = {source for v in graph.outputs for source in fusion.sources[v]}
        self.ids: dict[int, int] = {}
        self.last_reader: dict[int, int] = {}
        """By tensor the last call that reads it, or else makes it."""
        self.statements += [Constant(self._write_value(v), lent=v not in graph.donated) for v in self.arguments]
        self._write_calls()
        self._write_releases()
        self.statements += [Keep(self.ids[v]) for v in self.results if v in self.ids and v not in self.arguments]

    def _write_value(self, value: int) -> int:
        outside = not self.arguments and value in self.results
        self.ids[value] = self.tensor(str(value), 0 if outside else self.problem.graph.values[value].size_bytes)
        return self.ids[value]

    def _write_calls(self) -> None:
        fusion = self.problem.fusion
        for op in self.problem.graph.ops:
            written = [v for v in op.writes if v in fusion.materialised]
            if not written:
                continue
            sources = dict.fromkeys(s for v in op.reads for s in fusion.sources[v] if s in self.ids)
            call = Call(
                name=str(op.id),
                price=1e9 * self.problem.op_s[op.id],
                reads=tuple(self.ids[s] for s in sources),
                writes=tuple(map(self._write_value, written)),
                once=bool(op.effects),
                dense=op.kind is Kind.CONTRACTION,
            )
            self.last_reader.update(dict.fromkeys((*call.writes, *call.reads), len(self.calls)))
            self.calls.append(call)

    def _write_releases(self) -> None:
        """Issues all calls, each followed by the releases of what it was the last to read; says what replaces what."""
        stay, ids = self._kept_tensors(), self.ids
        old = {ids.get(new): ids.get(v) for v, new in state_of(self.problem.graph).items()}
        for i, call in enumerate(self.calls):
            tensors = dict.fromkeys((*call.writes, *call.reads))
            dying = [t for t in tensors if self.last_reader[t] == i and t not in stay]
            taken = tuple(old[t] if old.get(t) in dying else None for t in call.writes)
            self.calls[i] = replace(call, replaces=() if set(taken) == {None} else taken)
            self.statements += [RunCall(i), *map(Release, dying)]

    def _kept_tensors(self) -> set[int]:
        lent = self.arguments.keys() - self.problem.graph.donated
        return {t for v, t in self.ids.items() if v in self.results or v in lent}
