"""Cuts of a forward pass into stages: where few bytes cross, found by the structure of the graph.

A stage is a run of consecutive forward ops whose clones start together, when the backward needs the first of them.
Values that cross from one stage to the next are saved. Cuts at residual additions or block outputs keep these few; a
model with long skip connections is cut where fewest bytes cross. Scopes and names are not read.

The cut has the fewest crossing bytes, summed over its boundaries, such that no stage has more than a given number of
residual bytes; dynamic programming with a sliding minimum finds it in linear time. Which limit is best depends on all
other live values at the peak, so solvers try several. Read after `problem`. Compare Chen et al. 2016, section 4, whose
segments have a limit of equal bytes too.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from itertools import accumulate, pairwise

from jaxckpt.ir import Graph, GraphPlan, Phase
from jaxckpt.schedule import Run, schedule
from jaxckpt.schedule.argument_derived import argument_derived_values
from jaxckpt.solve.problem import Problem

StageStarts = tuple[int, ...]
"""The id of the first op of each stage, ascending."""

_COUNTS = (1, *(2**octave * (4 + quarter) / 4 for octave in range(1, 7) for quarter in range(4)), 128)
"""Limits of a stage are the residual bytes of the step divided by these; four a power of two, up to deep models.

Where a boundary is for one limit decides where the next ones are, so cuts of near limits differ much. With two a power
of two no cut of more than six stages of an interatomic potential with a force loss is predicted below 13,412 MiB; with
four, one of ten stages takes 11,228 MiB."""
_NARROW = 1 / 8
"""The input of a head takes at most this share of the largest value in it. 0, 1/16 and 1/4 give plans that are as fast;
with 0 the least plans are as large and fewer (`python -m benchmarks.constants`)."""
_CUT_BYTES = 4096
"""Cost of a boundary besides its crossing bytes, so that no stage is empty. It is small against any activation: 64
bytes and 256 KiB give the same plans (`python -m benchmarks.constants`)."""


def candidate_cuts(problem: Problem, *, before_head: bool = False) -> tuple[StageStarts, ...]:
    """Different cuts of the forward pass, from one stage to many; `before_head` adds one to the last stage."""
    forward = problem.graph.forward
    if not forward:
        return ((0,),)
    made_bytes, crossing_bytes = list(needed_bytes(problem).values()), crossing(problem)
    found: dict[StageStarts, None] = {}
    for count in _COUNTS:
        if count > len(forward):
            break
        starts = _cheapest_cut(made_bytes, crossing_bytes, sum(made_bytes) / count)
        if before_head and len(starts) > 1:
            head = _before_head(starts[-1], made_bytes, crossing_bytes)
            head = _after_body(starts, made_bytes, crossing_bytes) if head is None else head
            starts = starts if head is None else [*starts, head]
        found.setdefault(tuple(forward[i] for i in starts))
    return tuple(found)


def _before_head(start: int, made_bytes: list[int], crossing_bytes: list[int]) -> int | None:
    """One more boundary in the last stage: where few bytes cross before the stage's largest residual, if they are few.

    All clones of a stage start with the first that the backward needs. In the last stage that is one of the loss, long
    before the block below the head is needed, and the peak is mostly in the head.
    """
    widest = max(range(start, len(made_bytes)), key=made_bytes.__getitem__)
    narrow = min(reversed(range(start + 1, widest + 1)), key=crossing_bytes.__getitem__, default=None)
    return None if narrow is None or crossing_bytes[narrow] > _NARROW * made_bytes[widest] else narrow


def _after_body(starts: list[int], made_bytes: list[int], crossing_bytes: list[int]) -> int | None:
    """One more boundary in the last stage, behind its last largest residual: where no more crosses than at others.

    A loss without wide residuals then is a stage of its own, and the block before it is recomputed behind its cotangent
    like all others, as with `jax.checkpoint` around each block.
    """
    widest = max(reversed(range(starts[-1], len(made_bytes))), key=made_bytes.__getitem__)
    most_bytes = max(crossing_bytes[start] for start in starts)
    behind = range(widest + 1, len(made_bytes))
    return next((position for position in behind if 0 < crossing_bytes[position] <= most_bytes), None)


def boundaries(problem: Problem, stages: StageStarts) -> frozenset[int]:
    """Values to save: materialised ones that a later stage reads, and those that no plan recomputes."""
    begins, reach = stages[1:], problem.reach
    crosses = (v for v, (made, last) in reach.items() if bisect_right(begins, made) < bisect_right(begins, last))
    return frozenset(crosses) | problem.never_recomputed


def stage_index(graph: Graph, stages: StageStarts) -> dict[int, int]:
    """For each forward op the index of its stage."""
    return {op: index for index, ops in enumerate(members(graph, stages)) for op in ops}


def members(graph: Graph, stages: StageStarts) -> tuple[tuple[int, ...], ...]:
    """The forward ops of each stage."""
    bounds = (0, *(bisect_left(graph.forward, start) for start in stages[1:]), len(graph.forward))
    return tuple(graph.forward[begin:end] for begin, end in pairwise(bounds))


def finer_stages(problem: Problem, plan: GraphPlan, starts: StageStarts) -> StageStarts:
    """The stages of a plan, cut further at some ops: where no clone reads what a clone before the cut writes.

    A compiler may start all clones of a stage at once, and then their results are live together. Clones on either side
    of such a cut do not need each other, so a barrier there costs next to nothing. XLA took 901 MiB for a plan of
    `equilibrium-2` of the battery in two stages, and takes 717 for it in six; 709 are predicted for both.
    """
    graph, derived = problem.graph, problem.graph.once(argument_derived_values)
    position = {op: i for i, op in enumerate(graph.forward)}
    runs = (step for step in schedule(graph, plan).steps if isinstance(step, Run) and step.is_clone)
    clones = {step.op for step in runs if step.op in position}
    begins, free, found = set(plan.stages), set(starts), list(plan.stages)
    last_reader, cut, has_clones = -1, None, False
    for i, op in enumerate(graph.forward):
        if op in begins:
            cut, has_clones = None, False
        elif op in free and has_clones and last_reader < i:
            cut = op
        if op in clones and not derived.issuperset(graph.ops[op].writes):
            if cut is not None:
                found.append(cut)
                cut = None
            readers = (position[r] for v in graph.ops[op].writes for r in graph.readers[v] if r in clones)
            last_reader, has_clones = max(last_reader, *readers, -1), True
    return tuple(sorted(found))


def needed_bytes(problem: Problem) -> dict[int, int]:
    """For each forward op the residual bytes that it writes, in all iterations of a loop, if nothing is recomputed."""
    graph = problem.graph
    kept_bytes = {v: graph.residual_bytes(v) for v in problem.needed & problem.worth_saving}
    return {op: sum(kept_bytes.get(v, 0) for v in graph.ops[op].writes) for op in graph.forward}


def crossing(problem: Problem) -> list[int]:
    """For each forward op, and the end, the bytes written before it that the forward pass reads from it on.

    With values inside of the kernel of a matrix product: a boundary there would separate the product from its epilogue.
    """
    graph = problem.graph
    position = {op: i for i, op in enumerate(graph.forward)}
    change = [0] * (len(position) + 1)
    for value, (made, last) in (*problem.reach.items(), *_inside_products(problem)):
        change[position[made] + 1] += graph.residual_bytes(value)
        change[position[last] + 1] -= graph.residual_bytes(value)
    return list(accumulate(change))


def _inside_products(problem: Problem) -> Iterator[tuple[int, tuple[int, int]]]:
    """Values that matrix products do not write, each with the forward ops that make it and read it."""
    graph = problem.graph
    for value in problem.fusion.inside_products:
        made = graph.producer[value]
        read = [op for op in graph.readers[value] if graph.ops[op].phase is Phase.FORWARD]
        if made is not None and graph.ops[made].phase is Phase.FORWARD and read:
            yield value, (made, read[-1])


def _cheapest_cut(needed: list[int], crossing: list[int], limit: float) -> list[int]:
    """Positions at which stages start, cheapest in crossing bytes with at most `limit` needed bytes a stage.

    best[j] = min over i < j, with needed[i:j] <= limit or i = j - 1, of best[i] + crossing[i]; the minimum slides.
    """
    before, start = [0, *accumulate(needed)], [0]
    entries = [0.0]  # best[i] + crossing[i]
    window: deque[int] = deque()
    for i in range(len(needed)):
        while window and entries[window[-1]] >= entries[i]:
            window.pop()
        window.append(i)
        while len(window) > 1 and before[i + 1] - before[window[0]] > limit:
            window.popleft()
        start.append(window[0])
        entries.append(entries[window[0]] + (crossing[i + 1] + _CUT_BYTES if i + 1 < len(crossing) else 0))
    starts, end = [], len(needed)
    while end > 0:
        end = start[end]
        starts.append(end)
    return starts[::-1]
