"""Segments of a chain: of k stages each, or about sqrt(n) of them: memory that grows with the root of the depth.

Three variants of Chen et al.: segments of a given number of stages (`jax.checkpoint` around each group of k layers, or
`checkpoint_sequential` in PyTorch), about sqrt(n) segments, and greedy planning, which closes a segment once it has
made more than b bytes, with b swept around the geometric mean of what the boundaries and the largest segment take.

Source: Chen et al. 2016, "Training deep nets with sublinear memory cost" (arXiv:1604.06174), section 4.1 and algorithm
3 with the search for B of section 4.3. Complexity: linear in stages for each b. Read after `chain`.
"""

from collections.abc import Iterator
from math import isqrt, sqrt

from jaxckpt.ir import GraphPlan
from jaxckpt.solve.baselines.chain import chain, segments, stage_bytes
from jaxckpt.solve.problem import Problem

_SWEPT = 9
"""Byte budgets that are tried besides 0. 5 and 17 give the same plans (`python -m benchmarks.constants`)."""


def solve_every(problem: Problem, k: int = 2) -> GraphPlan:
    """Keeps what crosses into every k-th stage of the chain."""
    return segments(problem, chain(problem)[::k], "every")


def solve_sqrt(problem: Problem) -> GraphPlan:
    """Keeps what crosses between about sqrt(n) segments of equally many stages."""
    stages = chain(problem)
    count = max(1, isqrt(len(stages) - 1) + 1)
    return segments(problem, tuple(stages[k * len(stages) // count] for k in range(count)), "sqrt")


def solve_sqrt_greedy(problem: Problem) -> GraphPlan:
    """Keeps what crosses between greedy segments, of the byte budget b that needs least memory."""
    stages = chain(problem)
    plans = (segments(problem, tuple(stages[k] for k in starts), "sqrt") for starts in _swept(problem, stages))
    return min(plans, key=lambda plan: plan.predicted.temp_bytes)


def greedy(made: list[int], split: list[int], b: float) -> tuple[tuple[int, ...], int, int]:
    """Algorithm 3: the first stage of each segment, each closed once it has made more than b bytes.

    `made` are the bytes that each stage makes, `split` those that cross into it. Also returns x, the bytes that cross
    between segments, and y, the bytes of the largest.
    """
    starts, temp, x, y = [0], 0, 0, 0
    for stage, size_bytes in enumerate(made):
        temp += size_bytes
        y = max(y, temp)
        if temp > b and stage + 1 < len(made):
            starts.append(stage + 1)
            x += split[stage + 1]
            temp = 0
    return tuple(starts), x, y


def _swept(problem: Problem, stages: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The segments for b = 0, and for b between B/sqrt(2) and sqrt(2) B, with B = sqrt(x y) as b = 0 gives it."""
    made, split = stage_bytes(problem, stages)
    starts, x, y = greedy(made, split, 0)
    found = [starts]
    found += [greedy(made, split, sqrt(x * y) * 2 ** (k / (_SWEPT - 1) - 0.5))[0] for k in range(_SWEPT)]
    yield from dict.fromkeys(found)
