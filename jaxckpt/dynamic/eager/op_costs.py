"""Seconds of operations: measured while they run, and by the cost model where a measurement tells nothing.

The first run of a kind of operation compiles it, so it is the second one that is measured. The least that was measured
counts, for what else the machine does only adds to it. Where that is hardly more than the way through Python, the cost
model says the price.
"""

from collections.abc import Sequence

from jaxckpt.cost.rates import Rates
from jaxckpt.dynamic import eager_seconds
from jaxckpt.ir import Graph

_SHORTEST_S = 2e-4
"""An operation that takes less is mostly dispatched, not worked on."""


class OpCosts:
    """Prices by kind of operation; kept from step to step."""

    def __init__(self, rates: Rates):
        self._rates = rates
        self._measured_s: dict[str, float] = {}
        self._seen: set[str] = set()

    def guesses(self, graph: Graph, keys: Sequence[str], views: frozenset[str]) -> list[float]:
        """For each op what was measured of its kind, else what the model says."""
        modelled_s = eager_seconds(graph, self._rates, views=views)
        return [self._measured_s.get(key, price) for key, price in zip(keys, modelled_s, strict=True)]

    def measured(self, key: str, seconds: float, *, otherwise: float) -> float:
        """The price of a kind of operation that has just taken so long; `otherwise` where that tells nothing."""
        if key not in self._seen:
            self._seen.add(key)
            return otherwise
        if seconds < _SHORTEST_S:
            return min(otherwise, seconds)
        self._measured_s[key] = min(seconds, self._measured_s.get(key, seconds))
        return self._measured_s[key]
