"""One option for each stage, so that no window exceeds the budget and the copies take the least time.

An integer programme over x_sk, "stage s takes option k":

    minimise    sum seconds_sk x_sk  +  out + back
    subject to  sum_k x_sk = 1                                        for each stage
                sum_k own_wk x_sk + wait_w <= budget                  for each window w of s
                wait_w = wait_v + sum_k bytes_tk x_tk - ...           for stages t that wait in w but not in v, the
                                                                      window before, less those that wait in v alone
                sum_{s>=t, k} copy_sk x_sk - out <= room_t            for each stage t, and the same for back
                sum_sk host_sk x_sk <= what the host has

The last two are there where values may go to the host; see `hosted`. It is exact for the options given and the windows
measured: layers may differ, and the budget is used to the last byte that the options allow. Without a budget that can
be met, the same programme with the budget as a variable gives the combination of least memory.

Read after `windows` and `hosted`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, lil_array

from jaxckpt.solve.optimal.offload_options import HostLink
from jaxckpt.solve.optimal.options import Option
from jaxckpt.solve.optimal.stage_memory import StageMemory
from jaxckpt.solve.silenced import quiet

_LARGEST = 1e4
"""The largest coefficient of a row: bytes are scaled to it, far above the tolerance of the solver (1e-6)."""


def compose(
    options: Sequence[Sequence[Option]], seen: StageMemory, *, budget_bytes: int | None, link: HostLink | None = None
) -> tuple[int, ...] | None:
    """The best combination of options.

    Args:
      options: For each stage what it can keep.
      seen: What replays say of the same stages.
      budget_bytes: What temporaries may take; None asks for the combination of least memory.
      link: To the host, where options use it.

    Returns:
      For each stage the index of its option; None where no combination meets the budget.
    """
    first = np.cumsum([0, *map(len, options)])
    with quiet():
        result = milp(
            **_programme(options, seen, budget_bytes, first, link), options={"mip_rel_gap": 5e-3, "node_limit": 500}
        )
    if result.x is None:
        return None
    return tuple(int(np.argmax(result.x[first[s] : first[s + 1]])) for s in range(len(options)))


def least_seconds(
    options: Sequence[Sequence[Option]], seen: StageMemory, *, budget_bytes: int, link: HostLink | None = None
) -> float | None:
    """Seconds below which no combination gets within a budget, nor any mix of options in parts: the linear relaxation.

    Returns:
      Seconds of all stages; None where no mix meets the budget.
    """
    first = np.cumsum([0, *map(len, options)])
    programme = _programme(options, seen, budget_bytes, first, link)
    with quiet():
        result = milp(**{**programme, "integrality": np.zeros_like(programme["integrality"])})
    if result.x is None:
        return None
    return float(result.fun) * 1e-6 + sum(map(min, seen.stage_s))


def _programme(
    options: Sequence[Sequence[Option]],
    seen: StageMemory,
    budget_bytes: int | None,
    first: NDArray[np.intp],
    link: HostLink | None,
) -> dict[str, Any]:
    """Columns: one for each option, one for what waits in each window, the peak, and what copies delay each way.

    Bytes are in units of `unit`, delays in microseconds.
    """
    count, windows = int(first[-1]), seen.windows
    columns = count + len(windows) + 3
    at_peak = columns - 3
    unit = max(1.0, max(max(map(abs, window.own_bytes)) for window in windows) / _LARGEST)
    one_each = lil_array((len(options), columns))
    for stage in range(len(options)):
        one_each[stage, first[stage] : first[stage + 1]] = 1
    waits = lil_array((len(windows), columns))
    peak = lil_array((len(windows), columns))
    before: frozenset[int] = frozenset()
    for row, window in enumerate(windows):
        now = frozenset(window.waiting)
        waits[row, count + row] = 1
        if row:
            waits[row, count + row - 1] = -1
        for t in now ^ before:
            sign = -1 if t in now else 1
            waits[row, first[t] : first[t + 1]] = [sign * option.saved_bytes / unit for option in options[t]]
        before = now
        peak[row, count + row] = 1
        peak[row, first[window.stage] : first[window.stage + 1]] = np.array(window.own_bytes) / unit
    cost = np.zeros(columns)
    cost[:count] = [(s - min(stage)) * 1e6 for stage in seen.stage_s for s in stage]
    cost[at_peak + 1 :] = 1.0
    if budget_bytes is None:
        peak[:, at_peak] = -1
        cost *= 1e-6
        cost[at_peak] = 1.0
    lower = np.zeros(columns)
    lower[count:at_peak] = -np.inf  # a boundary that waits on the host is counted elsewhere
    integrality = np.zeros(columns)
    integrality[:count] = 1
    return {
        "c": cost,
        "constraints": [
            LinearConstraint(csr_array(one_each), 1, 1),
            LinearConstraint(csr_array(waits), 0, 0),
            LinearConstraint(csr_array(peak), ub=0.0 if budget_bytes is None else budget_bytes / unit),
            *([] if link is None else _of_link(link, columns, unit)),
        ],
        "integrality": integrality,
        "bounds": Bounds(lower, np.where(integrality, 1, np.inf)),
    }


def _of_link(link: HostLink, columns: int, unit: float) -> Iterator[LinearConstraint]:
    """What copies delay each way, in the last two columns; and what the host has."""
    copies_us = [np.array(own) * 1e6 for own in link.copy_s]
    first = np.cumsum([0, *map(len, copies_us)])
    for column, out in ((columns - 2, True), (columns - 1, False)):
        queue = lil_array((len(copies_us), columns))
        for t in range(len(copies_us)):
            queue[t, first[t] : first[-1]] = np.concatenate(copies_us[t:])
            queue[t, column] = -1
        yield LinearConstraint(csr_array(queue), ub=np.array(link.room_s(out=out)) * 1e6)
    if link.most_host_bytes is not None:
        host = np.zeros(columns)
        host[: first[-1]] = np.concatenate([np.array(own, dtype=float) for own in link.host_bytes]) / unit
        yield LinearConstraint(csr_array(host[None, :]), ub=link.most_host_bytes / unit)
