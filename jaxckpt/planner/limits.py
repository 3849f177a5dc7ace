"""Limits of the searches for plans: what counts as well used, faster or too slow."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the compiles of a search.

    No benchmark fixed the exact values, unless an attribute says so; `python -m benchmarks.frontier` and
    `python -m benchmarks.loops` show what they come to: planned totals against budgets.

    Attributes:
      well_used: A search ends with a plan that takes this share of the bytes that the budget leaves for temporaries.
      faster: A candidate is compiled if it is expected to take at most this share of the best plan's seconds.
      too_slow: A plan that takes this many times the predicted seconds is compared with one of another cut: in ViT and
        T5 the model is off by more than two good plans differ (`python -m benchmarks.frontier`).
      margins: Taken off the corrected question after one plan that is too large, two, and more, as shares of the
        budget: compiled totals do not follow the question exactly.
      rules_order: Until a simple rule was compiled, seconds of rules are taken as this share of the expected ones: the
        model's order of two plans that differ by less is often wrong.
    """

    well_used: float = 0.985
    faster: float = 0.995
    too_slow: float = 1.05
    rules_order: float = 0.97
    margins: tuple[float, ...] = (0.001, 0.02, 0.1)
