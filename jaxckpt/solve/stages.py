"""Cuts of a forward pass into stages: where few bytes cross, found by the structure of the graph.

A stage is a run of consecutive forward ops whose clones start together, when the backward needs the first of them.
Values that cross from one stage to the next are saved. Cuts at residual additions or block outputs keep these few; a
model with long skip connections is cut where fewest bytes cross. Scopes and names are not read.

The cut has the fewest crossing bytes, summed over its boundaries, such that no stage has more than a given number of
residual bytes; dynamic programming with a sliding minimum finds it in linear time. `candidate_cuts` returns one cut for
each of several limits: which is best depends on all other live values at the peak, so solvers try them.

Read after `problem`. Compare Chen et al. 2016, section 4, whose segments have a limit of equal bytes too.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from itertools import accumulate

from jaxckpt.ir import Graph
from jaxckpt.solve.problem import Problem

StageStarts = tuple[int, ...]
"""The id of the first op of each stage, ascending."""

_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Limits of a stage are the residual bytes of the step divided by these; two a power of two, up to deep models."""
_NARROW = 1 / 8
"""The input of a head takes at most this share of the largest value in it. No benchmark fixed the exact value."""
_CUT_BYTES = 4096
"""Cost of a boundary besides its crossing bytes, so that no stage is empty. It is small against any activation."""


def candidate_cuts(problem: Problem, *, before_head: bool = False) -> tuple[StageStarts, ...]:
    """Cuts of the forward pass, from one stage to many, each different from the others.

    Args:
      problem: The step.
      before_head: True if all cuts but the single stage have one more boundary before the head.
    """
    graph = problem.graph
    forward = graph.forward
    if not forward:
        return ((0,),)
    made_bytes, crossing_bytes = needed_bytes(problem), crossing(problem)
    total_bytes = sum(made_bytes)
    found: dict[StageStarts, None] = {}
    for count in _COUNTS:
        if count > len(forward):
            break
        limit_bytes = total_bytes / count
        starts = _cheapest_cut(made_bytes, crossing_bytes, limit_bytes)
        if before_head and len(starts) > 1:
            starts = _before_head(starts, made_bytes, crossing_bytes)
        found.setdefault(tuple(forward[i] for i in starts))
    return tuple(found)


def _before_head(starts: list[int], made_bytes: list[int], crossing_bytes: list[int]) -> list[int]:
    """The same cut with one more boundary before the head: where few bytes cross before the stage's largest residual.

    All clones of a stage start with the first that the backward needs. In the last stage that is one of the loss, long
    before the block below the head is needed, and the peak is mostly in the head.
    """
    widest = max(range(starts[-1], len(made_bytes)), key=made_bytes.__getitem__)
    between = range(starts[-1] + 1, widest + 1)
    narrow = min(reversed(between), key=crossing_bytes.__getitem__, default=None)
    if narrow is None or crossing_bytes[narrow] > _NARROW * made_bytes[widest]:
        return starts
    return [*starts, narrow]


def boundaries(problem: Problem, stages: StageStarts) -> frozenset[int]:
    """Values to save: materialised ones that a later stage reads, and those that no plan recomputes."""
    begins, reach = stages[1:], problem.reach
    crosses = (v for v, (made, last) in reach.items() if bisect_right(begins, made) < bisect_right(begins, last))
    return frozenset(crosses) | problem.never_recomputed


def stage_index(graph: Graph, stages: StageStarts) -> dict[int, int]:
    """For each forward op the index of its stage."""
    bounds = (*(bisect_left(graph.forward, start) for start in stages[1:]), len(graph.forward))
    found, begin = dict[int, int](), 0
    for index, end in enumerate(bounds):
        found.update(dict.fromkeys(graph.forward[begin:end], index))
        begin = end
    return found


def members(graph: Graph, stages: StageStarts) -> tuple[tuple[int, ...], ...]:
    """The forward ops of each stage."""
    found: list[list[int]] = [[] for _ in stages]
    for op, stage in stage_index(graph, stages).items():
        found[stage].append(op)
    return tuple(map(tuple, found))


def needed_bytes(problem: Problem, *, per_iteration: bool = False) -> list[int]:
    """For each forward op the residual bytes that it writes, if nothing is recomputed.

    Ops of a loop body write them in every iteration; `per_iteration` counts one, since clones of one iteration are
    live at a time.
    """
    graph = problem.graph
    kept = problem.needed & problem.worth_saving
    forward = (graph.ops[op] for op in graph.forward)
    held = [1] * len(graph.values) if per_iteration else graph.stack_depths
    return [sum(held[v] * graph.values[v].size_bytes for v in op.writes if v in kept) for op in forward]


def crossing(problem: Problem) -> list[int]:
    """For each forward op, and the end, the bytes written before it that the forward pass reads from it on."""
    graph = problem.graph
    position = {op: i for i, op in enumerate(graph.forward)}
    change = [0] * (len(position) + 1)
    for value, (made, last) in problem.reach.items():
        change[position[made] + 1] += graph.residual_bytes(value)
        change[position[last] + 1] -= graph.residual_bytes(value)
    return list(accumulate(change))


def _cheapest_cut(needed: list[int], crossing: list[int], limit: float) -> list[int]:
    """Positions at which stages start, cheapest in crossing bytes with at most `limit` needed bytes a stage.

    best[j] = min over i < j, with needed[i:j] <= limit or i = j - 1, of best[i] + crossing[i]; the minimum slides.
    """
    length = len(needed)
    before = [0, *accumulate(needed)]
    best = [0.0] * (length + 1)
    start = [0] * (length + 1)
    window: deque[int] = deque()
    for j in range(1, length + 1):
        i = j - 1
        entry = best[i] + (crossing[i] + _CUT_BYTES if i else 0)
        while window and _entry(best, crossing, window[-1]) >= entry:
            window.pop()
        window.append(i)
        while len(window) > 1 and before[j] - before[window[0]] > limit:
            window.popleft()
        if before[j] - before[window[0]] > limit:
            start[j], best[j] = i, entry
        else:
            start[j], best[j] = window[0], _entry(best, crossing, window[0])
    return sorted(_walk_back(start, length))


def _entry(best: list[float], crossing: list[int], i: int) -> float:
    return best[i] + (crossing[i] + _CUT_BYTES if i else 0)


def _walk_back(start: list[int], end: int) -> Iterator[int]:
    while end > 0:
        end = start[end]
        yield end
