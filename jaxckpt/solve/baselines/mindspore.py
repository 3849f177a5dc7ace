"""MindSpore's auto-recompute: a fused kernel runs again where keeping its result costs more bytes than what it reads.

A fused kernel G (no product, no sum) whose result is read soon by the forward pass and late by the backward makes a
long-term edge. Running G again at the late reader frees the result, and keeps what G reads where nothing else would:

    increment = bytes(result) - sum of bytes(input of G that is not alive at the late reader anyway)

G runs again if the increment exceeds the threshold. A result that only the backward reads makes a short-term edge,
which has a threshold of its own. A threshold of 0 is one that nothing exceeds; with both 0 MindSpore does nothing, so
here the default is `DEFAULT_BYTES`.

Source: mindspore/ccsrc/backend/common/graph_kernel/graph_kernel_recompute.cc, `AutoRecompute`; the flags are
`recompute_increment_threshold` and `recompute_peak_threshold`. Read after `chain`.
"""

from functools import partial

from jaxckpt._errors import BudgetError
from jaxckpt._units import parse_bytes
from jaxckpt.ir import GraphPlan, Kind, Phase
from jaxckpt.solve.baselines.chain import chain, drop, fused_kernel
from jaxckpt.solve.problem import Problem
from jaxckpt.solve.strategy import Solver

DEFAULT_BYTES = 2**20
_NOT_FUSED = frozenset({Kind.CONTRACTION, Kind.OPAQUE, Kind.SCATTER, Kind.BARRIER})
_ENDLESS = 2**62


def solve_mindspore(problem: Problem, increment_bytes: int = DEFAULT_BYTES, peak_bytes: int = 0) -> GraphPlan:
    """Computes again what frees more than a threshold; `peak_bytes` is that of short-term edges; 0 for none."""
    # Complexity: the conditions are MindSpore's, in its order.
    graph = problem.graph
    short = peak_bytes or _ENDLESS
    long = min(short, increment_bytes or _ENDLESS)
    dropped: set[int] = set()
    for op in graph.ops:
        if op.phase is not Phase.FORWARD or op.effects or op.kind in _NOT_FUSED:
            continue
        for value in problem.needed.intersection(op.writes) & problem.worth_saving - problem.never_recomputed:
            increment = _increment_bytes(problem, value, dropped)
            read_soon = any(graph.ops[r].phase is Phase.FORWARD for r in graph.readers[value])
            if increment is not None and increment > (long if read_soon else short):
                dropped.add(value)
    return drop(problem, dropped, chain(problem), "mindspore")


def _increment_bytes(problem: Problem, value: int, dropped: set[int]) -> int | None:
    """The increment of the module's docstring for the kernel of a value; None for kernels with a sum."""
    graph, (ops, reads) = problem.graph, fused_kernel(problem, value)
    if any(graph.ops[k].primitive == "reduce_sum" for k in ops):
        return None
    made = (v for v in reads if graph.producer[v] is not None)
    extended = (v for v in made if v not in problem.needed or v in dropped)
    return graph.residual_bytes(value) - sum(map(graph.residual_bytes, extended))


def read_option(text: str) -> Solver:
    """One size, the threshold of long-term edges; or two with a comma between, the second that of short-term ones."""
    try:
        sizes = [parse_bytes(part, called=f"mindspore:{text}") for part in text.split(",")]
    except BudgetError as error:
        raise ValueError(error.headline) from error
    if len(sizes) > 2:
        raise ValueError(f"{len(sizes)} sizes")
    increment_bytes, peak_bytes = (*sizes, 0)[:2]
    return Solver(solve=partial(solve_mindspore, increment_bytes=increment_bytes, peak_bytes=peak_bytes))
