"""PyTorch's partitioner: a minimum cut decides what is kept, a knapsack which costly ops may run again.

The network has a source, a sink, and for each forward value an edge whose capacity is what keeping it costs. What the
backward reads flows into the sink. What must not run again flows out of the source: products, kernels of others,
random draws, reductions that shrink much. So the smallest cut is the cheapest set of values from which the backward
follows without any of those. To keep less than a share of its bytes, first the bans that only save traffic are lifted,
then a knapsack picks which of the banned ops stay banned: bytes are the weights, seconds the values. Two of PyTorch's
bans are left out, those on values that fused kernels read far apart. Seconds are those of our cost model, where PyTorch
counts FLOPs. Arguments, and what is kept anyway, are free.

Source: torch/_functorch/partitioners.py, `solve_min_cut` and `choose_saved_values_set`; Chen 2022, "Min-cut optimal(*)
recomputation". Complexity: that of Dinic's algorithm (scipy) on twice as many nodes as forward values.
Read after `chain`, `knapsack`.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property, partial

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from jaxckpt.ir import GraphPlan, Kind, Op, Phase, Trait
from jaxckpt.solve.baselines.chain import chain, closed
from jaxckpt.solve.baselines.knapsack import KNAPSACKS
from jaxckpt.solve.problem import Problem, decide
from jaxckpt.solve.strategy import Solver

_FRACTIONS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02, 0.0)
_IN_MEMORY = frozenset({Kind.CONTRACTION, Kind.OPAQUE})
_MUCH_SMALLER = 4
"""A reduction that makes this much less than it reads is not run again, as in PyTorch. 2 and 8 give the same plans
(`python -m benchmarks.constants`)."""
_ENDLESS = 2**30
"""A capacity that no cut contains; all others together are scaled to less (scipy counts in 32 bits)."""
_TWICE = 2
"""A value that no kernel writes costs a write and a read to keep, as in PyTorch. 1 and 4 give the same plans."""


def sweep_min_cut(
    problem: Problem, knapsack: str = "dp", fractions: Sequence[float] = _FRACTIONS
) -> Iterator[GraphPlan]:
    """The plans of several shares of the bytes of the fastest cut, 0 to 1: PyTorch's `activation_memory_budget`."""
    partitioner, stages = Partitioner(problem), chain(problem)
    for saved in dict.fromkeys(partitioner.saved(fraction, knapsack) for fraction in fractions):
        yield decide(problem, saved | problem.never_recomputed, closed(problem, stages, saved), "mincut")


def read_option(text: str) -> Solver:
    """A knapsack, a fraction, or both with a comma between; raises `ValueError` for anything else."""
    knapsacks, fractions = [], []
    for part in text.split(","):
        if part in KNAPSACKS:
            knapsacks.append(part)
        elif 0 <= (fraction := float(part)) <= 1:
            fractions.append(fraction)
        else:
            raise ValueError(f"{part} is no share between 0 and 1")
    if len(knapsacks) > 1 or len(fractions) > 1:
        raise ValueError(f"{text!r} names more than one knapsack, or more than one share")
    knapsack = next(iter(knapsacks), "dp")
    if not fractions:
        return Solver(sweep=partial(sweep_min_cut, knapsack=knapsack))
    return Solver(solve=lambda problem: next(iter(sweep_min_cut(problem, knapsack, fractions))))


class Partitioner:
    """The network of one step, cut under several bans."""

    def __init__(self, problem: Problem):
        self.problem = problem
        graph = problem.graph
        self.free = {*graph.inputs, *graph.constants, *graph.outputs, *problem.never_recomputed}
        self.free.update(v for op in graph.ops if op.effects for v in op.writes)
        self.distance = self._distances()
        """For each value from which the backward is reached, in how few ops."""
        self.cut = cache(self._cut)
        """The cheapest values to keep so that nothing banned runs again."""
        self.savable = frozenset(v for v in problem.worth_saving - self.free if v in self.distance)

    def saved(self, fraction: float, knapsack: str) -> frozenset[int]:
        """The saved values for a share of the bytes that the fastest cut saves."""
        fastest = self.cut(self.costly | self.unlisted | self.read_by_products)
        if fraction >= 1:
            return fastest
        most = self._saved_bytes(fastest)
        for banned in (self.costly | self.unlisted, self.costly):
            saved = self.cut(banned)
            if self._saved_bytes(saved) < fraction * most:
                return saved
        if fraction <= 0 or not most:
            return frozenset()
        costly = sorted(self.costly, key=lambda v: (-self.problem.graph.residual_bytes(v), v))
        weights = [self.problem.graph.residual_bytes(v) / most for v in costly]
        values = [self.problem.op_s[self._made(v).id] * 1e6 for v in costly]
        kept = KNAPSACKS[knapsack](weights, values, fraction)
        return self.cut(frozenset(costly[k] for k in kept))

    def _saved_bytes(self, values: Iterable[int]) -> int:
        return sum(map(self.problem.graph.residual_bytes, values))

    @cached_property
    def costly(self) -> frozenset[int]:
        """Results of products, of custom kernels, of random draws, and of reductions that shrink much."""
        return frozenset(v for v in self.savable if self._is_costly(self._made(v)))

    @cached_property
    def unlisted(self) -> frozenset[int]:
        """Results of scatters, sorts and other ops outside of fused kernels."""
        return frozenset(v for v in self.savable if self._made(v).kind in (Kind.SCATTER, Kind.OPAQUE))

    @cached_property
    def read_by_products(self) -> frozenset[int]:
        """Values read by backward ops that do not fuse: a clone of them would be materialised too."""
        graph = self.problem.graph
        readers = (op for op in graph.ops if op.phase is not Phase.FORWARD and op.kind in _IN_MEMORY)
        return self.savable.intersection(v for op in readers for v in op.reads)

    def _cut(self, banned: frozenset[int]) -> frozenset[int]:
        graph = self.problem.graph
        nodes = {v: 2 * k + 2 for k, v in enumerate(v for v in sorted(self.distance) if v not in self.free)}
        if not nodes:
            return frozenset()
        edges = [(node, node + 1, self.capacity.get(v, _ENDLESS)) for v, node in nodes.items()]
        edges += [(0, nodes[v], _ENDLESS) for v in banned & nodes.keys()]
        edges += [(nodes[v] + 1, 1, _ENDLESS) for v in graph.read_after_forward & nodes.keys()]
        for v in nodes:
            for reader in graph.readers[v]:
                edges += [(nodes[v] + 1, nodes[w], _ENDLESS) for w in graph.ops[reader].writes if w in nodes]
        rows, columns, limits = map(np.array, zip(*dict.fromkeys(edges), strict=True))
        count = 2 * len(nodes) + 2
        network = csr_array((limits.astype(np.int32), (rows, columns)), shape=(count, count))
        result = maximum_flow(network, 0, 1, method="dinic")
        residual = csr_array(network - result.flow)
        residual.eliminate_zeros()
        reached = set(breadth_first_order(residual, 0, return_predecessors=False).tolist())
        return frozenset(v for v, node in nodes.items() if node in reached and node + 1 not in reached)

    @cached_property
    def capacity(self) -> dict[int, int]:
        """Cost of saving each value: its bytes, more if the backward is further, doubled if no kernel writes it."""
        # Complexity: one line for each kind of edge of the network, then the cut.
        graph, fusion = self.problem.graph, self.problem.fusion
        weight = {
            v: graph.residual_bytes(v)
            * 1.1 ** min(100, max(1, self.distance[v]))
            * (1 if v in fusion.materialised else _TWICE)
            for v in self.savable
        }
        unit = max(1.0, sum(weight.values()) / (_ENDLESS - len(weight) - 1))
        return {v: max(1, int(size / unit)) for v, size in weight.items()}

    def _distances(self) -> dict[int, int]:
        graph, residuals = self.problem.graph, self.problem.read_after_forward
        distance: dict[int, int] = {}
        for op in reversed(graph.ops):
            if op.phase is not Phase.FORWARD:
                continue
            for v in op.writes:
                ahead = [distance[w] for r in graph.readers[v] for w in graph.ops[r].writes if w in distance]
                if v in residuals or ahead:
                    distance[v] = 1 + (0 if v in residuals else min(ahead))
        return distance

    def _made(self, value: int) -> Op:
        op = self.problem.graph.producer[value]
        assert op is not None, "arguments are free"
        return self.problem.graph.ops[op]

    def _is_costly(self, op: Op) -> bool:
        works = op.kind is Kind.OPAQUE and (op.flops is None or op.flops > 0)
        read, written = self.problem.graph.size_bytes(op.reads), self.problem.graph.size_bytes(op.writes)
        shrinks = op.kind is Kind.REDUCTION and written * _MUCH_SMALLER <= read
        return op.kind is Kind.CONTRACTION or works or shrinks or Trait.RANDOM in op.traits
