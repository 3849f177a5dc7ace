"""Limits of the searches for plans: what counts as well used, faster or too slow, and how much may be tried."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the searches for budgets, batches and frontiers.

    Attributes:
      well_used: A search ends with a plan that takes this share of the bytes that the budget leaves for temporaries.
      faster: A candidate is compiled if it is expected to take at most this share of the best plan's seconds.
      too_slow: A plan that takes this many times the predicted seconds is compared with one of another cut: in ViT and
        T5 the model is off by more than two good plans differ (`python -m benchmarks.frontier`).
      margins: Taken off the corrected question after one plan that is too large, two, and more, as shares of the
        budget: compiled totals do not follow the question exactly.
      rules_order: Until a simple rule was compiled, seconds of rules are taken as this share of the expected ones: the
        model's order of two plans that differ by less is often wrong.
      larger_plans: Plans above the budget that are solved for a mixture, by budgets that grow by `growth` each.
      growth: The factor between these budgets.
      tilings: Pairs of divisors of a loop's trip count that are solved as tilings.
      worth_tiling: A loop is tiled if its carries take at least this share of the temporaries of the smallest plan: it
        saves the time to solve tilings that cannot lower the total much.
      asked: Budgets asked of the model for each compiled point of a frontier. More give a smoother expected frontier
        (`Frontier.between`) for more time in the solver.
      batches: Batches that are compiled on the way to the largest one.
      batches_between: Batches between the largest without recomputation and the largest at all that are compared for
        throughput.
      fast_batches: Batches, other than the largest, that are compiled for the highest throughput.
      slowest_batch: Batches of less than this share of the largest batch's predicted throughput are not compiled: the
        model's seconds are off by less (`python -m benchmarks.frontier`).
    """

    well_used: float = 0.985
    faster: float = 0.995
    too_slow: float = 1.05
    rules_order: float = 0.97
    margins: tuple[float, ...] = (0.001, 0.02, 0.1)
    larger_plans: int = 4
    growth: float = 1.25
    tilings: int = 3
    worth_tiling: float = 0.05
    asked: int = 3
    batches: int = 6
    batches_between: int = 3
    fast_batches: int = 2
    slowest_batch: float = 0.9
