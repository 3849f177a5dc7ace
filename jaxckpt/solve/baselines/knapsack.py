"""The knapsack three ways: which items are worth most within a weight; weights are shares of one.

`dp` is exact over weights rounded to ten-thousandths, `greedy` takes by value over weight, `ilp` is exact (HiGHS).

Source: the solvers of PyTorch's `activation_memory_budget_solver` ("dp", "greedy", "ilp"),
torch/_functorch/_activation_checkpointing/knapsack.py; Dantzig 1957 for the greedy rule.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from scipy.optimize import LinearConstraint

from jaxckpt.solve.milp import minimise

_STEPS = 10_000

Knapsack = Callable[[Sequence[float], Sequence[float], float], frozenset[int]]
"""From weights, values and the weight that may be taken to the items taken."""


def dp(weights: Sequence[float], values: Sequence[float], most: float) -> frozenset[int]:
    """The best items by dynamic programming. Complexity: items x 10,000."""
    room = int(most * _STEPS)
    heavy = [round(weight * _STEPS) for weight in weights]
    best, taken = np.zeros(room + 1), np.zeros((len(heavy), room + 1), dtype=bool)
    for item, (weight, value) in enumerate(zip(heavy, values, strict=True)):
        if weight <= room:
            with_item = best[: room + 1 - weight] + value
            taken[item, weight:] = with_item > best[weight:]
            best[weight:] = np.maximum(best[weight:], with_item)
    chosen = set()
    for item in reversed(range(len(heavy))):
        if taken[item, room]:
            chosen.add(item)
            room -= heavy[item]
    return frozenset(chosen)


def greedy(weights: Sequence[float], values: Sequence[float], most: float) -> frozenset[int]:
    """Items by falling value over weight, each that still fits."""
    chosen = set()
    for item in sorted(range(len(weights)), key=lambda i: -values[i] / max(weights[i], 1e-12)):
        if weights[item] <= most:
            chosen.add(item)
            most -= weights[item]
    return frozenset(chosen)


def ilp(weights: Sequence[float], values: Sequence[float], most: float) -> frozenset[int]:
    """The best items by integer programming."""
    if not weights:
        return frozenset()
    scale = max(map(abs, values)) or 1.0
    within = [LinearConstraint(np.array([weights]), ub=most)]
    found = minimise(-np.array(values) / scale, within, integrality=np.ones(len(weights)))
    return frozenset() if found is None else frozenset(np.flatnonzero(found[0] > 0.5).tolist())


KNAPSACKS: Mapping[str, Knapsack] = MappingProxyType({"dp": dp, "greedy": greedy, "ilp": ilp})
"""By the name of the option."""
