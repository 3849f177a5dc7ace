"""One option for each stage, so that no window exceeds the budget and the copies take the least time.

An integer programme over x_sk, "stage s takes option k":

    minimise    sum seconds_sk x_sk
    subject to  sum_k x_sk = 1                                                          for each stage
                sum_k own_wk x_sk + sum_{t waiting in w} sum_k bytes_tk x_tk <= budget    for each window w of s

It is exact for the options given and the windows measured: layers may differ, and the budget is used to the last
byte that the options allow. Without a budget that can be met, the same programme with the budget as a variable
gives the combination of least memory.

Read after `windows`.
"""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from jaxckpt.solve.options import Option
from jaxckpt.solve.quiet import quiet
from jaxckpt.solve.windows import Seen

_LARGEST = 1e4
"""The largest coefficient of a row: bytes are scaled to it, far above the tolerance of the solver (1e-6)."""


def compose(options: Sequence[Sequence[Option]], seen: Seen, *, budget_bytes: int | None) -> tuple[int, ...] | None:
    """The best combination of options.

    Args:
      options: For each stage what it can keep.
      seen: What replays say of the same stages.
      budget_bytes: What temporaries may take; None asks for the combination of least memory.

    Returns:
      For each stage the index of its option; None where no combination meets the budget.
    """
    first = np.cumsum([0, *map(len, options)])
    count = int(first[-1])
    one_each = np.zeros((len(options), count + 1))
    for stage in range(len(options)):
        one_each[stage, first[stage] : first[stage + 1]] = 1
    unit = max(1.0, max(max(map(abs, window.own_bytes)) for window in seen.windows) / _LARGEST)
    peak = np.zeros((len(seen.windows), count + 1))
    for row, window in enumerate(seen.windows):
        for t in window.waiting:
            peak[row, first[t] : first[t + 1]] = [o.saved_bytes / unit for o in options[t]]
        own = np.array(window.own_bytes) / unit
        peak[row, first[window.stage] : first[window.stage + 1]] += own
    seconds = [(s - min(stage)) * 1e6 for stage in seen.stage_s for s in stage]
    if budget_bytes is None:
        peak[:, count] = -1
        cost, limit = np.array([*np.array(seconds) * 1e-6, 1.0]), 0.0
    else:
        cost, limit = np.array([*seconds, 0.0]), budget_bytes / unit
    with quiet():
        result = milp(
            cost,
            constraints=[LinearConstraint(one_each, 1, 1), LinearConstraint(csr_array(peak), ub=limit)],
            integrality=np.array([*np.ones(count), 0]),
            bounds=Bounds(0, np.array([*np.ones(count), np.inf])),
            options={"mip_rel_gap": 5e-3, "node_limit": 500},
        )
    if result.x is None:
        return None
    return tuple(int(np.argmax(result.x[first[s] : first[s + 1]])) for s in range(len(options)))
