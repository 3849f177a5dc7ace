"""What any plan could do on a small graph: every set of saved values with every cut into stages, replayed.

The plans are those that save some values and compute all other residuals again, and the step as it is; the replay has
the last word on each, as it has for the solvers.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

from jaxckpt.ir import GraphPlan
from jaxckpt.solve import Problem, solve
from jaxckpt.solve.problem import decide


def every_plan(problem: Problem) -> Iterator[GraphPlan]:
    """All plans of a graph; some thousand for one of a dozen ops."""
    yield solve(problem, "none")
    first, *others = problem.graph.forward
    for saved in subsets(sorted(problem.worth_saving & problem.needed)):
        for cuts in subsets(others):
            yield decide(problem, frozenset(saved) | problem.never_recomputed, (first, *cuts), "oracle")


def frontier(problem: Problem) -> list[tuple[int, float]]:
    """The best of all plans: (temporaries, seconds), by rising bytes and falling seconds."""
    figures = sorted((plan.prediction.temp_bytes, plan.prediction.step_s) for plan in every_plan(problem))
    best: list[tuple[int, float]] = []
    for temp_bytes, step_s in figures:
        if not best or step_s < best[-1][1]:
            best.append((temp_bytes, step_s))
    return best


def fastest(best: Sequence[tuple[int, float]], temp_bytes: int) -> float | None:
    """The least seconds within a budget; None where nothing fits."""
    return min((seconds for size, seconds in best if size <= temp_bytes), default=None)


def subsets(items: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All subsets, small ones first."""
    for size in range(len(items) + 1):
        yield from combinations(items, size)
