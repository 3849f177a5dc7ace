"""Composition of stages: one option for each stage, the fastest combination within the budget.

An integer programme over x_sk, "stage s takes option k":

    minimise    sum seconds_sk x_sk  +  store + load
    subject to  sum_k x_sk = 1                                        for each stage
                sum_k own_isk x_sk + held_i + sum_k in_flight_tk x_tk <= budget
                                                                      for each interval i in which s is active, with the
                                                                      stage t before s
                held_i = held_j + sum_k bytes_tk x_tk - ...           for stages t that are held in i but not in j, the
                                                                      interval before, minus those held in j but not i
                sum_{s>=t, k} copy_sk x_sk - store <= hiding_t        for each stage t, and the same for load
                sum_sk host_sk x_sk <= host memory

A stage is held in an interval if its saved values are live there. The last two constraints are present if values may be
offloaded; see `moved_options`. The solution is optimal for the given options and memory profiles, to the gap and within
the nodes of `_LIMITS`. The same programme with the budget as a variable gives the combination of least memory.

Read after `stage_memory` and `moved_options`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.optimize import LinearConstraint
from scipy.sparse import csr_array

from jaxckpt.solve.milp import Rows, byte_unit, minimise
from jaxckpt.solve.optimal.chain import chain_of
from jaxckpt.solve.optimal.moved_options import HostLink
from jaxckpt.solve.optimal.options import Option
from jaxckpt.solve.optimal.stage_memory import StageMemory

_GAP = 5e-3
_LIMITS: Mapping[str, Any] = {"mip_rel_gap": _GAP, "node_limit": 500}
"""Optimality gap and branch-and-bound nodes at which the solver stops: they bound planning time. The gap is below the
error of the model. Gaps of 1e-3 and 2e-2, 100 and 2500 nodes give the same plans (`python -m benchmarks.constants`),
except that some that may shard and offload differ with 1e-3."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StagedOptions:
    """The options of each stage of a cut, with what their combinations take.

    Attributes:
      stages: The first op of each stage.
      link: The copies of offloaded values; None where no option offloads one.
    """

    stages: tuple[int, ...]
    options: tuple[tuple[Option, ...], ...]
    memory: StageMemory
    link: HostLink | None = None

    @cached_property
    def least(self) -> tuple[int, ...]:
        """The combination of least memory, as the index of each stage's option."""
        found = compose(self.options, self.memory, budget_bytes=None, link=self.link)
        assert found is not None, "without a limit there is always a combination"
        return found

    def fastest(self, budget_bytes: int) -> tuple[int, ...] | None:
        """The fastest combination within a budget, as the index of each stage's option; None if none meets it.

        No programme is solved for budgets below the least memory. Such budgets are asked for often, and HiGHS takes
        long to prove that no combination meets them.
        """
        if budget_bytes < (1 - 2 * _GAP) * self.peak_bytes(self.least):
            return None
        return compose(self.options, self.memory, budget_bytes=budget_bytes, link=self.link)

    def peak_bytes(self, chosen: Sequence[int]) -> int:
        """The peak of a combination."""
        return self.memory.peak_bytes(self.options, chosen)

    def taken(self, chosen: Sequence[int]) -> tuple[Option, ...]:
        """The options of a combination."""
        return tuple(stage[k] for stage, k in zip(self.options, chosen, strict=True))


def compose(
    options: Sequence[Sequence[Option]], memory: StageMemory, *, budget_bytes: int | None, link: HostLink | None = None
) -> tuple[int, ...] | None:
    """For each stage the index of its option in the fastest combination within a budget; None if none meets it.

    Without a budget the combination of least memory.
    """
    if link is None and (chain := chain_of(options, memory)) is not None:
        return chain.least() if budget_bytes is None else chain.fastest(budget_bytes)
    found = minimise(**_programme(options, memory, budget_bytes, link), **_LIMITS)
    if found is None:
        return None
    columns = pairwise(np.cumsum([0, *map(len, options)]))
    return tuple(int(np.argmax(found[0][begin:end])) for begin, end in columns)


def least_seconds(
    options: Sequence[Sequence[Option]], memory: StageMemory, *, budget_bytes: int, link: HostLink | None = None
) -> float | None:
    """A lower bound of the seconds of every combination within a budget (linear relaxation); None if none meets it."""
    programme = _programme(options, memory, budget_bytes, link)
    found = minimise(**{**programme, "integrality": np.zeros_like(programme["integrality"])})
    return None if found is None else found[1] * 1e-6 + sum(map(min, memory.stage_s))


def _programme(
    options: Sequence[Sequence[Option]], memory: StageMemory, budget_bytes: int | None, link: HostLink | None
) -> dict[str, Any]:
    """Columns: one for each option, the bytes held in each interval, the peak, and the delays of stores and of loads.

    Bytes are in units of `unit`, delays in microseconds.
    """
    first: list[int] = np.cumsum([0, *map(len, options)]).tolist()
    count = first[-1]
    at_peak = count + len(memory.intervals)
    columns = at_peak + 3
    unit = byte_unit(max(max(map(abs, interval.own_bytes)) for interval in memory.intervals))
    rows = Rows()
    for begin, end in pairwise(first):
        rows.add(dict.fromkeys(range(begin, end), 1.0), lower=1, upper=1)
    _add_memory(rows, first, options, memory, unit, budget_bytes)
    cost = np.zeros(columns)
    cost[:count] = [(s - min(stage)) * 1e6 for stage in memory.stage_s for s in stage]
    cost[at_peak + 1 :] = 1.0
    if budget_bytes is None:
        cost *= 1e-6
        cost[at_peak] = 1.0
    lower = np.zeros(columns)
    lower[count:at_peak] = -np.inf  # may be negative: options do not count their boundary
    integrality = np.zeros(columns)
    integrality[:count] = 1
    return {
        "cost": cost,
        "constraints": [rows.constraint(columns), *([] if link is None else _of_link(link, columns, unit))],
        "integrality": integrality,
        "lower": lower,
        "upper": np.where(integrality, 1, np.inf),
    }


def _add_memory(
    rows: Rows,
    first: Sequence[int],
    options: Sequence[Sequence[Option]],
    memory: StageMemory,
    unit: float,
    budget_bytes: int | None,
) -> None:
    """The bytes held in each interval, and the bytes of each interval within the budget or the peak's column."""
    count = first[-1]
    before: frozenset[int] = frozenset()
    for held, interval in enumerate(memory.intervals, count):
        now = frozenset(interval.holding)
        terms = {held: 1.0, **({held - 1: -1.0} if held > count else {})}
        for t in now ^ before:
            sign = -1 if t in now else 1
            terms |= {k: sign * option.saved_bytes / unit for k, option in enumerate(options[t], first[t])}
        rows.add(terms, lower=0, upper=0)
        before = now
    peak = {count + len(memory.intervals): -1.0} if budget_bytes is None else {}
    for held, interval in enumerate(memory.intervals, count):
        own = {k: size_bytes / unit for k, size_bytes in enumerate(interval.own_bytes, first[interval.stage])}
        if (copying := interval.copying) is not None:
            before_it = enumerate(options[copying], first[copying])
            own |= {k: option.in_flight_bytes / unit for k, option in before_it if option.in_flight_bytes}
        rows.add({held: 1.0, **own, **peak}, upper=(budget_bytes or 0) / unit)


def _of_link(link: HostLink, columns: int, unit: float) -> Iterator[LinearConstraint]:
    """The delays of stores and loads, in the last two columns, and the limit of host memory."""
    first = np.cumsum([0, *map(len, link.copy_s)])
    copies_us = np.concatenate([np.array(own) * 1e6 for own in link.copy_s])
    for column, store in ((columns - 2, True), (columns - 1, False)):
        queue = np.zeros((len(link.copy_s), columns))
        queue[:, column] = -1
        for t, begin in enumerate(first[:-1]):
            queue[t, begin : first[-1]] = copies_us[begin:]
        yield LinearConstraint(csr_array(queue), ub=np.array(link.hiding_s(store=store)) * 1e6)
    if link.most_host_bytes is not None:
        host = np.zeros((1, columns))
        host[0, : first[-1]] = np.concatenate([np.array(own, dtype=float) for own in link.host_bytes]) / unit
        yield LinearConstraint(csr_array(host), ub=link.most_host_bytes / unit)
