"""Limits of the searches for plans: what counts as well used, faster or too slow, and how much may be tried."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the searches for budgets, batches and frontiers.

    `python -m benchmarks.constants` compares each value with smaller and larger ones, on three steps at two budgets and
    a compiler that is the model, off by a few per cent. All values found plans of the same seconds and bytes; where the
    number of compiles differs the attribute says so.

    Attributes:
      well_used: A solver is asked no more once a plan of it takes this share of what the budget leaves for temporaries.
        0.95, 0.985 and 0.995 end at the same plans.
      faster: A candidate is compiled if it is expected to take at most this share of the best plan's seconds. 0.98
        takes three quarters of the compiles, 0.999 as many.
      too_slow: A plan that takes this many times the predicted seconds is compared with one of another cut: in ViT and
        T5 the model is off by more than two good plans differ (`python -m benchmarks.frontier`). 1 takes a twelfth
        more compiles, 1.2 as many.
      margins: Taken off the corrected question after one plan that is too large, two, and more, as shares of what the
        budget leaves for temporaries: compiled totals do not follow the question exactly. When they were shares of the
        whole budget, none, and two to ten times as large ones, ended at the same plans.
      rules_order: Until a simple rule was compiled, seconds of rules are taken as at most this share of the expected
        ones: the model's order of two plans that differ by less is often wrong. 0.9 takes a quarter more compiles, 1 a
        twelfth fewer.
      larger_plans: Plans above the budget that are solved for a mixture, by budgets that grow by `growth` each. 1, 4
        and 8 end at the same plans.
      growth: The factor between these budgets. 1.1, 1.25 and 1.5 end at the same plans.
      tilings: Pairs of divisors of a loop's trip count that are solved as tilings. 1, 3 and 6 end at the same plans.
      worth_tiling: A loop is tiled if its carries take at least this share of the temporaries of the smallest plan: it
        saves the time to solve tilings that cannot lower the total much. 0, 0.05 and 0.2 end at the same plans.
      asked: Budgets asked of the model for each compiled point of a frontier. 1 gives 4 points of 5 in two thirds of
        the solver's time, 6 the same points in 1.5 times the time.
      batches: Batches that are compiled on the way to the largest one. 2, 6 and 12 find the same batch.
      batches_between: Batches between the largest without recomputation and the largest at all that are compared for
        throughput. 1 and 6 find the same fastest batch; 1 traces a fifth fewer batches, 6 a third more.
      fast_batches: Batches, other than the largest, that are compiled for the highest throughput. 1 and 4 find the same
        fastest batch; 1 takes a sixth fewer compiles, 4 two thirds more.
      slowest_batch: Batches of less than this share of the largest batch's predicted throughput are not compiled: the
        model's seconds are off by less (`python -m benchmarks.frontier`). 0.8, 0.9 and 1 compile the same batches.
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
