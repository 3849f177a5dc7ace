"""Revolve (treeverse): the binomial schedule of a chain of equal steps, and what a plan can say of it.

With c snapshots a chain of l steps is reversed in the fewest forward advances by splitting it where the binomial
coefficients say, keeping a snapshot there, reversing the right part with one snapshot less, then the left one with all.
A plan computes a value again once; revolve sets new snapshots while it goes back and runs some steps many times. So
`sweep_revolve` keeps the snapshots of the first sweep and computes each segment between them again at once.

Source: Griewank and Walther 2000, "Algorithm 799: revolve", proposition 1; Griewank 1992 (treeverse). Read after
`chain`.
"""

from collections.abc import Iterator
from functools import cache
from math import comb

from jaxckpt.ir import GraphPlan
from jaxckpt.solve.baselines.chain import chain, segments
from jaxckpt.solve.problem import Problem

_COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128)


def sweep_revolve(problem: Problem) -> Iterator[GraphPlan]:
    """Plans that keep the snapshots of the first sweep, from one to as many as there are stages."""
    stages = chain(problem)
    sweeps = dict.fromkeys(first_sweep(len(stages), c) for c in _COUNTS if c <= len(stages))
    for sweep in sweeps:
        yield segments(problem, tuple(stages[step] for step in sweep), "revolve")


def advances(steps: int, snapshots: int) -> int:
    """Forward steps that revolve runs to reverse a chain, besides the one that each backward step needs itself.

    t(l, c) = r l - beta(c + 1, r - 1), with beta(c, r) = (c + r)! / (c! r!) and beta(c, r - 1) < l <= beta(c, r), for a
    chain of l steps and c states that memory holds at once, that of the start among them.

    Example:
      >>> advances(10, 3), advances(10, 10), advances(10, 1)
      (15, 9, 45)
    """
    if steps <= 1:
        return 0
    r = 1
    while comb(snapshots + r, r) < steps:
        r += 1
    return r * steps - comb(snapshots + r, r - 1)


@cache
def first_split(steps: int, snapshots: int) -> int:
    """How far the second snapshot stands from the first; of equally good distances the most even one."""

    def cost(j: int) -> int:
        return j + advances(steps - j, snapshots - 1) + advances(j, snapshots)

    return min(range(1, steps), key=lambda j: (cost(j), abs(j * snapshots - steps)))


def first_sweep(steps: int, snapshots: int) -> tuple[int, ...]:
    """The steps whose states are kept when the backward begins: (0, 4, 7) of 10 steps with 3 snapshots."""
    kept, at = [0], 0
    while snapshots > 1 and steps > 1:
        ahead = first_split(steps, snapshots)
        at, steps, snapshots = at + ahead, steps - ahead, snapshots - 1
        kept.append(at)
    return tuple(kept)
