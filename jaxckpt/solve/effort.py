"""The effort of a solve: how many cuts, options, compositions and replays it may take, and which plans count as equal.

`python -m benchmarks.constants` compares each value with smaller and larger ones, on four steps at two budgets:
predicted seconds of the plans, bytes of the least plans, and seconds of the solver.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Bounds and tolerances of the solvers.

    Attributes:
      near_least: A cut or a plan whose peak is within this factor of the least one is nearly as small. 1, 1.1 and 1.3
        give the same plans; 1 has fewer candidates before a budget is refused.
      same_memory: Plans of two cuts whose memory is within this factor: their order is within the error of the model.
        1, 1.02 and 1.1 give the same plans; 1.1 has a seventh more candidates before a budget is refused.
      cuts: Cuts that are solved for a budget, those of the lowest memory bounds first. With 1 plans are 0.6% slower and
        solved in half the time, with 3 they are the same.
      least_cuts: Cuts that are solved for the least memory. 1, 3 and 6 give the same least plan; 1 has fewer candidates
        before a budget is refused, 6 no more.
      options: Options of a stage without moved values: it bounds the integer programmes of a stage, and the columns of
        the one that composes the stages. With 6 plans are 0.3% slower, with 24 they are 0.3% faster, in 1.35 times the
        time.
      compositions: Compositions of one cut for one budget, each with the budget corrected by the replay of the one
        before. With 1 plans are 0.1% slower; 2, 4 and 8 give the same.
      tolerance: A composition that counts more than this share of the budget too much is repeated with a larger budget.
        0.005 and 0.02 give the same plans; with 0.1 they are 0.1% slower, those of graph attention at a budget near its
        least 2.7%.
      op_runs: Ops times replays of a local search; 0 for no local search. With 0 least plans are 9% larger, with 15,000
        they are 6% larger; with 120,000 they are the same, in 1.6 times the time.
      fewest_replays: With fewer replays than this the local search does not start: it would see few of the changes.
        Only steps of thousands of ops have so few; on small ones 1, 20 and 80 give the same plans.
    """

    near_least: float = 1.1
    same_memory: float = 1.02
    cuts: int = 2
    least_cuts: int = 3
    options: int = 12
    compositions: int = 4
    tolerance: float = 0.02
    op_runs: int = 60_000
    fewest_replays: int = 20


_USUAL = Effort()
_EFFORT: ContextVar[Effort] = ContextVar("_EFFORT", default=_USUAL)
default_effort = _EFFORT.get
"""The effort of a problem that is created without one of its own."""


@contextmanager
def with_default_effort(effort: Effort) -> Iterator[None]:
    """Sets the effort of every `Problem` that is created inside the context without one of its own."""
    token = _EFFORT.set(effort)
    try:
        yield
    finally:
        _EFFORT.reset(token)
