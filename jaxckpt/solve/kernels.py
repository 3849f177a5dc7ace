"""A step as the kernels that it compiles to, for the dynamic engine: what is fused is one call, and takes no bytes.

Read after `problem` and `jaxckpt.dynamic.program`.
"""

from typing import TYPE_CHECKING

from jaxckpt.ir import Kind
from jaxckpt.solve.problem import Problem

if TYPE_CHECKING:
    from jaxckpt.dynamic import Program


def program_of_kernels(problem: Problem) -> "Program":
    """The step as the kernels that it compiles to, over the values that they write to memory.

    Args:
      problem: The step.

    Returns:
      A call for each op that writes to memory, named by the op's id and priced by its kernel's nanoseconds, beside
      which what DTE adds to costs and times is nothing, as meant. Arguments are not in it: they are always there.
      Results are kept at the end, and have no bytes.
    """
    from jaxckpt.dynamic.program import Call, Keep, Program, Release, Run, Step, Tensor  # numba is behind it: a second

    graph, fusion = problem.graph, problem.fusion
    outside = {source for v in graph.outputs for source in fusion.sources[v]}
    tensor: dict[int, int] = {}
    tensors: list[Tensor] = []
    calls: list[Call] = []
    for op in graph.ops:
        written = [v for v in op.writes if v in fusion.materialised]
        if not written:
            continue
        sources = dict.fromkeys(s for v in op.reads for s in fusion.sources[v] if s in tensor)
        for v in written:
            tensor[v] = len(tensors)
            size = 0 if v in outside else graph.values[v].size_bytes
            tensors.append(Tensor(name=str(v), size_bytes=size))
        calls.append(
            Call(
                name=str(op.id),
                price=1e9 * problem.op_s[op.id],
                reads=tuple(tensor[s] for s in sources),
                writes=tuple(tensor[v] for v in written),
                once=bool(op.effects),
                dense=op.kind is Kind.CONTRACTION,
            )
        )
    kept = [tensor[v] for v in dict.fromkeys(outside) if v in tensor]
    last = {t: i for i, call in enumerate(calls) for t in (*call.writes, *call.reads)}
    steps: list[Step] = []
    for i, call in enumerate(calls):
        steps.append(Run(i))
        dying = (t for t in dict.fromkeys((*call.writes, *call.reads)) if last[t] == i and t not in kept)
        steps += [Release(t) for t in dying]
    steps += [Keep(t) for t in kept]
    return Program(tensors=tuple(tensors), calls=tuple(calls), steps=tuple(steps))
