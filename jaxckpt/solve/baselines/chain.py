"""A step as a chain: the stages that the planners of chains know, and plans that recompute whole stages of it.

Sequences of layers are found by structure: the forward pass is cut wherever no more crosses than at the ends of the
block around, and something is needed in between. So a residual block of attention and feed-forward part is two stages,
and a plain stack of layers has one stage a layer. Read after `jaxckpt.solve.stages`.
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate, pairwise

from jaxckpt.ir import Decision, GraphPlan, Recompute, Save
from jaxckpt.solve.full_recompute import find_blocks
from jaxckpt.solve.problem import Problem, decide
from jaxckpt.solve.stages import StageStarts, boundaries, crossing, members, needed_bytes


def chain(problem: Problem) -> StageStarts:
    """The first op of each stage of the finest chain."""
    ops = problem.graph.forward
    if not ops:
        return (0,)
    crossing_bytes, before = crossing(problem), [0, *accumulate(needed_bytes(problem).values())]
    limit_bytes = _limits(ops, find_blocks(problem), crossing_bytes)
    cuts = [0]
    for i in range(1, len(ops)):
        if crossing_bytes[i] > limit_bytes[i] or before[-1] == before[i]:
            continue
        if before[i] > before[cuts[-1]]:
            cuts.append(i)
        elif cuts[-1] and crossing_bytes[i] < crossing_bytes[cuts[-1]]:
            cuts[-1] = i
    return tuple(ops[i] for i in cuts)


def stage_bytes(problem: Problem, stages: StageStarts) -> tuple[list[int], list[int]]:
    """For each stage of a chain the bytes that it makes, and those that cross into it."""
    made_bytes = needed_bytes(problem)
    crossing_bytes = dict(zip(problem.graph.forward, crossing(problem), strict=False))
    made = [sum(made_bytes[op] for op in ops) for ops in members(problem.graph, stages)]
    return made, [crossing_bytes.get(op, 0) for op in stages]


def segments(problem: Problem, starts: StageStarts, strategy: str) -> GraphPlan:
    """Saves the values that cross segments; does not recompute the last segment if that takes no more memory."""
    all_segments = decide(problem, boundaries(problem, starts), starts, strategy)
    all_but_last = recompute(problem, starts, range(len(starts) - 1), strategy)
    return min(all_but_last, all_segments, key=lambda plan: plan.predicted.temp_bytes)


def recompute(problem: Problem, starts: StageStarts, recomputed: Iterable[int], strategy: str) -> GraphPlan:
    """The plan that recomputes some segments, by their index; the others have no decisions."""
    graph, ops = problem.graph, members(problem.graph, starts)
    within = {v for k in recomputed for op in ops[k] for v in graph.ops[op].writes}
    saved = boundaries(problem, starts)
    decisions: dict[int, Decision] = {v: Save() for v in saved}
    decisions |= {v: Recompute() for v in _repeatable(problem, problem.read_after_forward & within) - saved}
    return problem.plan({**decisions, **problem.required}, starts, strategy)


def drop(problem: Problem, dropped: Iterable[int], stages: StageStarts, strategy: str) -> GraphPlan:
    """The plan that recomputes some values, with all values inside their kernels.

    The inputs of these kernels are saved; all other values have no decision.
    """
    # Complexity: each line is one set, made of those above; as functions they would all pass the same sets on.
    graph, keeping = problem.graph, problem.never_recomputed | frozenset(problem.graph.outputs)
    gone = _repeatable(problem, dropped) - keeping
    standing_on = {v for v in problem.read_after_forward if not gone.isdisjoint(problem.fusion.sources[v])}
    kernels = [fused_kernel(problem, v) for v in sorted(gone | standing_on)]
    inside = {v for ops, _ in kernels for op in ops for v in graph.ops[op].writes}
    starts = frozenset(v for _, reads in kernels for v in reads) - gone
    decisions: dict[int, Decision] = {v: Save() for v in starts & problem.worth_saving}
    decisions |= {v: Recompute() for v in _repeatable(problem, problem.read_after_forward & inside) - keeping - starts}
    return problem.plan({**decisions, **problem.required}, stages, strategy)


def fused_kernel(problem: Problem, value: int) -> tuple[frozenset[int], frozenset[int]]:
    """The producer of a value with all ops fused into it, and the values that these read from memory."""
    graph, written = problem.graph, problem.fusion.materialised
    ops: set[int] = set()
    reads: set[int] = set()
    pending = [value]
    while pending:
        op = graph.producer[pending.pop()]
        if op is None or op in ops:
            continue
        ops.add(op)
        for read in graph.ops[op].reads:
            (reads.add if read in written or graph.producer[read] is None else pending.append)(read)
    return frozenset(ops), frozenset(reads)


def closed(problem: Problem, stages: StageStarts, saved: frozenset[int]) -> StageStarts:
    """The boundaries of a chain across which nothing is recomputed: all values that cross them are saved."""
    kept = saved | frozenset(problem.graph.outputs)
    if not problem.never_recomputed <= kept:
        return stages[:1]
    cuts, recomputed_across = stages[1:], [0] * len(stages)
    for value, (made, last) in problem.reach.items():
        if value not in kept:
            recomputed_across[bisect_right(cuts, made)] += 1
            recomputed_across[bisect_right(cuts, last)] -= 1
    across = accumulate(recomputed_across)
    return (stages[0], *(cut for cut, count in zip(cuts, across, strict=False) if not count))


def _repeatable(problem: Problem, values: Iterable[int]) -> frozenset[int]:
    """The values that a plan may recompute: those of ops without effects, except results of the step."""
    graph = problem.graph
    made = {v: graph.producer[v] for v in frozenset(values) - frozenset(graph.outputs)}
    return frozenset(v for v, op in made.items() if op is not None and not graph.ops[op].effects)


def _limits(ops: tuple[int, ...], blocks: StageStarts, crossing_bytes: list[int]) -> list[int]:
    """For each forward op what may cross before it: the larger of what crosses at the ends of its block."""
    position = {op: i for i, op in enumerate(ops)}
    edges = [0, *(position[op] for op in blocks[1:] if op in position), len(ops)]
    if len(edges) == 2:
        return [min(crossing_bytes[1:-1], default=0)] * len(ops)
    limits: list[int] = []
    for begin, end in pairwise(edges):
        limits += [max(crossing_bytes[begin], crossing_bytes[end])] * (end - begin)
    return limits
