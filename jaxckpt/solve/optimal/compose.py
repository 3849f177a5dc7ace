"""Composition of stages: one option for each stage, the fastest combination within the budget.

An integer programme over x_sk, "stage s takes option k":

    minimise    sum seconds_sk x_sk  +  store + load
    subject to  sum_k x_sk = 1                                        for each stage
                sum_k own_isk x_sk + held_i <= budget                 for each interval i in which s is active
                held_i = held_j + sum_k bytes_tk x_tk - ...           for stages t that are held in i but not in j, the
                                                                      interval before, minus those held in j but not i
                sum_{s>=t, k} copy_sk x_sk - store <= hiding_t        for each stage t, and the same for load
                sum_sk host_sk x_sk <= host memory

A stage is held in an interval if its saved values are live there. The last two constraints are present if values may be
offloaded; see `offload_options`. The solution is optimal for the given options and memory profiles. The same programme
with the budget as a variable gives the combination of least memory.

Read after `stage_memory` and `offload_options`.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, lil_array

from jaxckpt.solve.milp import silenced_stdout
from jaxckpt.solve.optimal.offload_options import HostLink
from jaxckpt.solve.optimal.options import Option
from jaxckpt.solve.optimal.stage_memory import StageMemory

_LARGEST = 1e4
"""Bytes are scaled so that this is the largest coefficient of a row: the solver's absolute tolerance (1e-6) is then far
below a byte that matters. No benchmark fixed the exact value."""

_LIMITS = {"mip_rel_gap": 5e-3, "node_limit": 500}
"""Optimality gap and branch-and-bound nodes at which the solver stops: they bound planning time. The gap is below the
error of the model; no benchmark fixed the exact values."""


def compose(
    options: Sequence[Sequence[Option]], memory: StageMemory, *, budget_bytes: int | None, link: HostLink | None = None
) -> tuple[int, ...] | None:
    """For each stage the index of its option in the fastest combination within a budget; None if none meets it.

    Without a budget the combination of least memory.
    """
    with silenced_stdout():
        result = milp(**_programme(options, memory, budget_bytes, link), options=_LIMITS)
    if result.x is None:
        return None
    columns = pairwise(np.cumsum([0, *map(len, options)]))
    return tuple(int(np.argmax(result.x[begin:end])) for begin, end in columns)


def least_seconds(
    options: Sequence[Sequence[Option]], memory: StageMemory, *, budget_bytes: int, link: HostLink | None = None
) -> float | None:
    """A lower bound of the seconds of every combination within a budget (linear relaxation); None if none meets it."""
    programme = _programme(options, memory, budget_bytes, link)
    with silenced_stdout():
        result = milp(**{**programme, "integrality": np.zeros_like(programme["integrality"])})
    if result.x is None:
        return None
    return float(result.fun) * 1e-6 + sum(map(min, memory.stage_s))


def _programme(
    options: Sequence[Sequence[Option]], memory: StageMemory, budget_bytes: int | None, link: HostLink | None
) -> dict[str, Any]:
    """Columns: one for each option, the bytes held in each interval, the peak, and the delays of stores and of loads.

    Bytes are in units of `unit`, delays in microseconds.
    """
    first, intervals = np.cumsum([0, *map(len, options)]), memory.intervals
    count = int(first[-1])
    columns = count + len(intervals) + 3
    at_peak = columns - 3
    unit = max(1.0, max(max(map(abs, interval.own_bytes)) for interval in intervals) / _LARGEST)
    one_each = lil_array((len(options), columns))
    for stage in range(len(options)):
        one_each[stage, first[stage] : first[stage + 1]] = 1
    held = lil_array((len(intervals), columns))
    peak = lil_array((len(intervals), columns))
    before: frozenset[int] = frozenset()
    for row, interval in enumerate(intervals):
        now = frozenset(interval.holding)
        held[row, count + row] = 1
        if row:
            held[row, count + row - 1] = -1
        for t in now ^ before:
            sign = -1 if t in now else 1
            held[row, first[t] : first[t + 1]] = [sign * option.saved_bytes / unit for option in options[t]]
        before = now
        peak[row, count + row] = 1
        peak[row, first[interval.stage] : first[interval.stage + 1]] = np.array(interval.own_bytes) / unit
    cost = np.zeros(columns)
    cost[:count] = [(s - min(stage)) * 1e6 for stage in memory.stage_s for s in stage]
    cost[at_peak + 1 :] = 1.0
    if budget_bytes is None:
        peak[:, at_peak] = -1
        cost *= 1e-6
        cost[at_peak] = 1.0
    lower = np.zeros(columns)
    lower[count:at_peak] = -np.inf  # may be negative: options do not count their boundary
    integrality = np.zeros(columns)
    integrality[:count] = 1
    return {
        "c": cost,
        "constraints": [
            LinearConstraint(csr_array(one_each), 1, 1),
            LinearConstraint(csr_array(held), 0, 0),
            LinearConstraint(csr_array(peak), ub=0.0 if budget_bytes is None else budget_bytes / unit),
            *([] if link is None else _of_link(link, columns, unit)),
        ],
        "integrality": integrality,
        "bounds": Bounds(lower, np.where(integrality, 1, np.inf)),
    }


def _of_link(link: HostLink, columns: int, unit: float) -> Iterator[LinearConstraint]:
    """The delays of stores and loads, in the last two columns, and the limit of host memory."""
    copies_us = [np.array(own) * 1e6 for own in link.copy_s]
    first = np.cumsum([0, *map(len, copies_us)])
    for column, store in ((columns - 2, True), (columns - 1, False)):
        queue = lil_array((len(copies_us), columns))
        for t in range(len(copies_us)):
            queue[t, first[t] : first[-1]] = np.concatenate(copies_us[t:])
            queue[t, column] = -1
        yield LinearConstraint(csr_array(queue), ub=np.array(link.hiding_s(store=store)) * 1e6)
    if link.most_host_bytes is not None:
        host = np.zeros(columns)
        host[: first[-1]] = np.concatenate([np.array(own, dtype=float) for own in link.host_bytes]) / unit
        yield LinearConstraint(csr_array(host[None, :]), ub=link.most_host_bytes / unit)
