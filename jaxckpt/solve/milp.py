"""Integer programmes by HiGHS: sparse rows, and a solver that prints nothing.

HiGHS prints some lines whatever its options are. The output of the CLI's `--json`, and of programs in pipes, must
contain nothing else. Output of other Python threads is lost for the duration of one integer programme too.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

_STANDARD_OUTPUT = 1
_SILENCING = Lock()
_LARGEST = 1e4
"""Bytes are scaled so that this is the largest coefficient of a row: the solver's absolute tolerance (1e-6) is then far
below a byte that matters. 1e3 and 1e5 give plans that are as fast (`python -m benchmarks.constants`)."""


class Rows:
    """Sparse rows `lower <= sum of factor x column <= upper`."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, float]] = []
        self._lower: list[float] = []
        self._upper: list[float] = []

    def add(self, terms: Mapping[int, float], *, lower: float = -np.inf, upper: float = np.inf) -> None:
        """Adds a row, from columns to factors."""
        self._entries += [(len(self._lower), column, factor) for column, factor in terms.items() if factor]
        self._lower.append(lower)
        self._upper.append(upper)

    def constraint(self, columns: int) -> LinearConstraint:
        """At least one row, as scipy takes them."""
        rows, indices, factors = zip(*self._entries, strict=True)
        matrix = csr_array((factors, (rows, indices)), shape=(len(self._lower), columns))
        return LinearConstraint(matrix, lb=np.array(self._lower), ub=np.array(self._upper))


def byte_unit(largest_bytes: float) -> float:
    """Bytes in one unit of an integer programme in which no coefficient is larger than these bytes."""
    return max(1.0, largest_bytes / _LARGEST)


def minimise(
    cost: Any,
    constraints: Sequence[LinearConstraint],
    *,
    integrality: Any,
    lower: Any = 0,
    upper: Any = 1,
    **limits: Any,
) -> tuple[Any, float] | None:
    """The best columns found for an integer programme and their cost; None if there are none within the limits."""
    bounds = Bounds(lower, upper)
    with silenced_stdout():
        result = milp(cost, constraints=constraints, integrality=integrality, bounds=bounds, options=limits)
    return None if result.x is None else (result.x, float(result.fun))


@contextmanager
def silenced_stdout() -> Iterator[None]:
    """Discards the standard output of native code, for one thread at a time: a second would restore the null device."""
    with _SILENCING:
        if sys.stdout is not None:
            sys.stdout.flush()
        try:
            original = os.dup(_STANDARD_OUTPUT)
        except OSError:  # a process without standard output, such as a daemon
            original = None
        if original is None:
            yield
            return
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, _STANDARD_OUTPUT)
            yield
        finally:
            os.dup2(original, _STANDARD_OUTPUT)
            os.close(original)
            os.close(null)
