"""The effort of a solve: how many cuts, options, compositions and replays it may take, and which plans count as equal.

More effort changes plans of small graphs by their last per cent. `python -m benchmarks.constants` compares each value
with a smaller and a larger one: predicted seconds and bytes of the plans, and seconds of the solver.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Bounds and tolerances of the solvers.

    Attributes:
      near_least: A cut or a plan whose peak is within this factor of the least one is nearly as small.
      same_memory: Plans of two cuts whose memory is within this factor: their order is within the error of the model.
      cuts: Cuts that are solved for a budget, those of the lowest memory bounds first.
      least_cuts: Cuts that are solved for the least memory.
      options: Options of a stage without moved values: it bounds the integer programmes of a stage, and the columns of
        the one that composes the stages.
      compositions: Compositions of one cut for one budget, each with the budget corrected by the replay of the one
        before.
      tolerance: A composition that counts more than this share of the budget too much is repeated with a larger budget.
      op_runs: Ops times replays of a local search; 0 for no local search.
      fewest_replays: With fewer replays than this the local search does not start: it would see few of the changes.
      small_share: The share of a local search that plans get which are not nearly the least: enough for such plans to
        become the least on the smallest graphs.
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
    small_share: float = 0.1


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
