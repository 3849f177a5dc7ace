"""A decoder of width 4,096 for an H200: by hand, and with each set of decisions that a planner may take.

`python -m benchmarks.wide_decoder [--minutes 60]` compiles what people write by hand, and plans the step at shares of
its total as written. Seconds are estimates, with the time that copies delay the step. What is there is not made again.
`python -m benchmarks.tables` makes the table of docs/offload.md.
"""

import argparse
import time
from collections.abc import Mapping
from contextlib import nullcontext
from itertools import product
from types import MappingProxyType
from typing import Any

from benchmarks.frontier import NAMED, WITHOUT, by_hand
from benchmarks.host_state import planned, planned_cell, wide
from benchmarks.models.blocks import Remat, naming
from benchmarks.record import keep, made_with, read
from jaxckpt import Offloading, footprint
from jaxckpt._units import format_bytes
from jaxckpt.planner import Planner

NAME = "wide-decoder"
ROWS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "recompute": {"allow": ("recompute",)},
        "chunk too": {"allow": ("recompute", "chunk")},
        "offload too": {"allow": ("recompute", "offload")},
        "offload over 300 GB/s": {
            "allow": ("recompute", "offload"),
            "offload": Offloading(bandwidth_bytes_per_s=300e9),
        },
        "state too": {"allow": ("recompute", "state")},
        "all four": {"allow": ("recompute", "chunk", "offload", "state")},
    }
)
"""For each row of the table the options of its planner."""
SHARES = (0.75, 0.7, 0.5, 0.35)
MOST_COMPILES = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="no plan is begun later")
    arguments = parser.parse_args()
    begin = time.monotonic()
    try:
        result = read(NAME)
    except FileNotFoundError:
        result = {"by_hand": {}, "plans": []}
    hand, plans = result["by_hand"], result["plans"]
    for name, remat in by_hand("llama").items():
        if name not in hand:
            hand[name] = compiled(name, remat)
            print(name, hand[name], flush=True)
            keep(NAME, {"by_hand": hand, "plans": plans})
    task, known = wide(fused=True), {(row["allow"], row["share"]) for row in plans}
    for share, (name, options) in product(SHARES, ROWS.items()):
        if (name, share) in known or time.monotonic() - begin > 60 * arguments.minutes:
            continue
        planner = Planner(
            task.step,
            *task.args,
            target="h200",
            donate_argnums=task.donate_argnums,
            max_compiles=MOST_COMPILES,
            **options,
        )
        row = planned(planner, int(share * hand[WITHOUT]["total_bytes"]))
        plans.append({"allow": name, "share": share, "date": made_with()["date"]} | row)
        print(plans[-1], flush=True)
        keep(NAME, {"by_hand": hand, "plans": plans})


def compiled(name: str, remat: Remat) -> dict[str, Any]:
    """Figures of what people write: the blocks under `jax.checkpoint` with a policy."""
    made = wide(fused=True, remat=remat)
    with naming() if name == NAMED else nullcontext():
        found = footprint(made.step, *made.args, target="h200", donate_argnums=made.donate_argnums)
    return {"total_bytes": found.total_bytes, "step_s": found.step_s}


def table() -> str:
    """Estimated seconds by budget: what is fastest by hand, and the plans by what they may decide."""
    result = read(NAME)
    hand = result["by_hand"]
    total_bytes = hand[WITHOUT]["total_bytes"]
    plans = {(row["allow"], row["share"]): row for row in result["plans"]}
    shares = [share for share in SHARES if any(key[1] == share for key in plans)]
    budgets = [int(share * total_bytes) for share in shares]
    lines = [
        f"| budget, of {format_bytes(total_bytes)} | {' | '.join(map(format_bytes, budgets))} |",
        f"|---|{'---:|' * len(budgets)}",
        f"| by hand | {' | '.join(_by_hand_cell(hand, budget) for budget in budgets)} |",
        *(f"| {name} | {' | '.join(planned_cell(plans.get((name, s))) for s in shares)} |" for name in ROWS),
    ]
    dates = sorted({row["date"] for row in result["plans"]})
    as_written_s = hand[WITHOUT]["step_s"]
    made = f"As written {1e3 * as_written_s:.1f} ms. jax {result['made_with']['versions']['jax']}, {', '.join(dates)}."
    return "\n".join([*lines, "", made, ""])


def _by_hand_cell(hand: Mapping[str, Any], budget_bytes: int) -> str:
    """The fastest version by hand within a budget, or the total of the smallest one."""
    fitting = {name: made for name, made in hand.items() if made["total_bytes"] <= budget_bytes}
    if not fitting:
        return f"at least {format_bytes(min(made['total_bytes'] for made in hand.values()))}"
    name = min(fitting, key=lambda name: fitting[name]["step_s"])
    return f"{1e3 * fitting[name]['step_s']:.1f} ms (`{name}`)"


if __name__ == "__main__":
    main()
