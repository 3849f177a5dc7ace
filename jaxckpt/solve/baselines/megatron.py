"""Megatron's selective recomputation: the core of each attention runs again, everything else is kept.

The core is found by structure, in any model: a batched product (queries with keys), a softmax (an exponential and a
reduction), a batched product (weights with values), and no other product in between. What stands between the two
products is dropped, the scores too: much memory, growing with the square of the sequence, for little arithmetic.
Attention in one kernel has nothing to drop. With an option the cores are what lies in the scopes that it names.

Source: Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models" (arXiv:2205.05198),
section 5; Megatron-LM's `recompute_granularity="selective"`, `recompute_modules=["core_attn"]`. Read after `chain`.
"""

from fnmatch import fnmatchcase
from itertools import groupby
from typing import NoReturn

from jaxckpt._errors import PolicyError
from jaxckpt.ir import Graph, GraphPlan, Kind, Op, Phase, Trait
from jaxckpt.solve.baselines.chain import drop
from jaxckpt.solve.problem import Problem

_MOST_OPS = 128
"""Between the products of one attention; what is longer is a stream that runs through the model. 64 and 256 find the
same cores (`python -m benchmarks.constants`)."""


def solve_megatron(problem: Problem, scope: str | None = None) -> GraphPlan:
    """Computes the core of each attention again, each on its own.

    `scope` is a glob on the scopes of the cores; None to find them by structure. Raises `PolicyError` if there is none.
    """
    graph = problem.graph
    cores = attention_cores(graph) if scope is None else _scopes(graph, scope)
    if not cores:
        _refuse(graph, scope)
    starts = sorted({0, *(min(core) for core in cores), *(max(core) + 1 for core in cores)})
    dropped = {v for core in cores for op in core for v in graph.ops[op].writes}
    return drop(problem, dropped - problem.never_recomputed, tuple(starts), "megatron")


def attention_cores(graph: Graph) -> tuple[frozenset[int], ...]:
    """The ops of each attention from its first product on to what its second one reads, in order."""
    # Complexity: one pass over the ops, whose branches are the states between the two products.
    inside: dict[int, frozenset[int]] = {}
    """For each value the ops between the last batched product and it, that one among them."""
    cores = []
    for op in (op for op in graph.ops if op.phase is Phase.FORWARD):
        behind = frozenset().union(*(inside.get(v, frozenset()) for v in op.reads))
        if op.kind is Kind.CONTRACTION:
            if Trait.BATCHED in op.traits and behind and _has_softmax(graph, behind):
                cores.append(behind)
            elif Trait.BATCHED in op.traits:
                inside.update(dict.fromkeys(op.writes, frozenset({op.id})))
        elif 0 < len(behind) < _MOST_OPS and op.kind is not Kind.OPAQUE and not op.effects:
            inside.update(dict.fromkeys(op.writes, behind | {op.id}))
    return tuple(cores)


def _has_softmax(graph: Graph, ops: frozenset[int]) -> bool:
    primitives = {graph.ops[op].primitive for op in ops}
    return not primitives.isdisjoint({"exp", "exp2"}) and not primitives.isdisjoint({"reduce_sum", "reduce_max"})


def _scopes(graph: Graph, scope: str) -> tuple[frozenset[int], ...]:
    """Forward ops under a scope, a set for each stretch of them."""

    def is_in_scope(op: Op) -> bool:
        return fnmatchcase(op.scope, scope) or fnmatchcase(op.scope, f"{scope}/*")

    forward = (op for op in graph.ops if op.phase is Phase.FORWARD)
    stretches = (ops for is_inside, ops in groupby(forward, key=is_in_scope) if is_inside)
    cores = (frozenset(op.id for op in ops if not op.effects) for ops in stretches)
    return tuple(filter(None, cores))


def _refuse(graph: Graph, scope: str | None) -> NoReturn:
    scopes = sorted({op.scope for op in graph.ops if op.phase is Phase.FORWARD and op.scope})
    got, needed = f"{len(graph.ops)} ops", "a batched product, a softmax and a batched product in a row"
    advice = 'strategy="full", or "megatron:SCOPE" for attention that is marked'
    if scope is not None:
        got = f"scope = {scope!r}"
        needed = f"one of the {len(scopes)} scopes of the step, such as {', '.join(scopes[:4]) or 'none'}"
        advice = 'strategy="megatron", which finds attention by structure'
    headline = 'solve(strategy="megatron") finds no attention to compute again.'
    raise PolicyError(headline, got=got, needed=needed, advice=advice, problems=("no attention",))
