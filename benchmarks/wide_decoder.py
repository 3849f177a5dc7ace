"""A decoder of width 4,096 for an H200: by hand, and with each set of decisions that a planner may take.

`python -m benchmarks.wide_decoder [--minutes 60]` compiles what people write by hand, and plans the step at shares of
its total as written. `--batches` searches for the largest batch in all memory of the device instead. Seconds are
estimates, with the time that copies delay the step. What is there is not made again. `python -m benchmarks.tables`
makes the tables of docs/offload.md and docs/budgets.md.
"""

import argparse
import time
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any

from benchmarks.frontier import NAMED, WITHOUT, by_hand
from benchmarks.host_state import planned, planned_cell, wide
from benchmarks.models.blocks import Remat, naming
from benchmarks.record import keep, made_with, read
from jaxckpt import Offloading, Step, Target, footprint, max_batch
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
TOKENS = 4096
"""Of each sequence."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="no plan or batch is begun later")
    parser.add_argument("--batches", action="store_true", help="the largest batches")
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    try:
        result = read(NAME)
    except FileNotFoundError:
        result = {}
    result = {"by_hand": {}, "plans": [], "batches": {}} | {k: v for k, v in result.items() if k != "made_with"}
    if arguments.batches:
        add_batches(result, end)
    else:
        add_plans(result, end)


def add_batches(result: dict[str, Any], end: float) -> None:
    """Adds the largest batch of each version by hand, and of plans by what they may decide."""
    searches = {name: partial(largest_by_hand, name, remat) for name, remat in by_hand("llama").items()}
    searches |= {name: partial(largest_planned, options) for name, options in ROWS.items()}
    for name, search in searches.items():
        if name in result["batches"] or time.monotonic() > end:
            continue
        begin = time.monotonic()
        found = search()
        result["batches"][name] = {"date": made_with()["date"], **found, "seconds": time.monotonic() - begin}
        print(name, result["batches"][name], flush=True)
        keep(NAME, result)


def largest_by_hand(name: str, remat: Remat) -> dict[str, Any]:
    """The largest batch of a version by hand, by secants: its total grows nearly as the batch does."""
    limit_bytes = Target("h200").memory_bytes
    made = {batch: compiled(name, remat, batch=batch) for batch in (2, 4)}
    while True:
        fitting = max(batch for batch in made if made[batch]["total_bytes"] <= limit_bytes)
        if fitting + 1 in made:
            return {"batch": fitting, "host_bytes": 0, "compiles": len(made)} | made[fitting]
        (low, low_bytes), (high, high_bytes) = sorted((b, row["total_bytes"]) for b, row in made.items())[-2:]
        expected = low + int((limit_bytes - low_bytes) * (high - low) / (high_bytes - low_bytes))
        above = min((batch for batch in made if batch > fitting), default=expected + 2)
        batch = max(fitting + 1, min(expected, above - 1))
        made[batch] = compiled(name, remat, batch=batch)


def largest_planned(options: Mapping[str, Any]) -> dict[str, Any]:
    """The largest batch with a plan."""
    found = max_batch(step_of_batch, target="h200", max_compiles=MOST_COMPILES, **options)
    largest = found.largest
    assert largest.plan is not None
    assert largest.plan.footprint is not None
    return {
        "batch": largest.batch,
        "total_bytes": largest.plan.footprint.total_bytes,
        "host_bytes": largest.plan.footprint.host_bytes,
        "step_s": largest.step_s,
        "compiles": found.compiles,
    }


def step_of_batch(batch: int) -> Step:
    """The step of one batch, as written."""
    made = wide(batch=batch, fused=True)
    return Step(made.step, made.args, donate_argnums=made.donate_argnums)


def add_plans(result: dict[str, Any], end: float) -> None:
    """Adds the versions by hand, and the plans of each budget by what they may decide."""
    hand, plans = result["by_hand"], result["plans"]
    for name, remat in by_hand("llama").items():
        if name not in hand:
            hand[name] = compiled(name, remat)
            print(name, hand[name], flush=True)
            keep(NAME, result)
    task, known = wide(fused=True), {(row["allow"], row["share"]) for row in plans}
    for share, (name, options) in product(SHARES, ROWS.items()):
        if (name, share) in known or time.monotonic() > end:
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
        keep(NAME, result)


def compiled(name: str, remat: Remat, *, batch: int = 2) -> dict[str, Any]:
    """Figures of what people write: the blocks under `jax.checkpoint` with a policy."""
    made = wide(batch=batch, fused=True, remat=remat)
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


def overhead_table() -> str:
    """Seconds over the step as written, as shares of those by recomputation, and the least share by the bound."""
    result = read(NAME)
    as_written_s = result["by_hand"][WITHOUT]["step_s"]
    rows = {(row["allow"], row["share"]): row for row in result["plans"] if row.get("bound_s")}
    lines = ["| budget | plans | over the step as written | by recomputation alone | least by the bound |"]
    lines.append("|---|---|---:|---:|---:|")
    for share, name in product(SHARES, ROWS):
        alone, row = rows.get(("recompute", share)), rows.get((name, share))
        if alone is None or row is None or name == "recompute":
            continue
        budget = format_bytes(int(share * result["by_hand"][WITHOUT]["total_bytes"]))
        more_s, alone_s = row["step_s"] - as_written_s, alone["step_s"] - as_written_s
        modelled_s = alone["predicted_s"] - alone["predicted_as_written_s"]
        least = (row["bound_s"] - row["predicted_as_written_s"]) / modelled_s
        lines.append(f"| {budget} | {name} | {1e3 * more_s:.1f} ms | {more_s / alone_s:.0%} | {least:.0%} |")
    dates = ", ".join(sorted({row["date"] for row in rows.values()}))
    version = result["made_with"]["versions"]["jax"]
    return "\n".join([*lines, "", f"jax {version}, {dates}.", ""])


def batch_table() -> str:
    """The largest batch in all memory of the device: by hand, and by what plans may decide."""
    result = read(NAME)
    batches = result["batches"]
    lines = ["| | largest batch | total | on the host | tokens a second |", "|---|---:|---:|---:|---:|"]
    for name in sorted(batches, key=lambda name: [*ROWS].index(name) if name in ROWS else -1):
        row = batches[name]
        host = format_bytes(row["host_bytes"]) if row["host_bytes"] else ""
        tokens = f"{TOKENS * row['batch'] / row['step_s']:,.0f}"
        lines.append(f"| {name} | {row['batch']} | {format_bytes(row['total_bytes'])} | {host} | {tokens} |")
    budget = format_bytes(Target("h200").memory_bytes)
    dates = ", ".join(sorted({row["date"] for row in batches.values()}))
    version = result["made_with"]["versions"]["jax"]
    return "\n".join([*lines, "", f"Within {budget}. jax {version}, {dates}.", ""])


def _by_hand_cell(hand: Mapping[str, Any], budget_bytes: int) -> str:
    """The fastest version by hand within a budget, or the total of the smallest one."""
    fitting = {name: made for name, made in hand.items() if made["total_bytes"] <= budget_bytes}
    if not fitting:
        return f"at least {format_bytes(min(made['total_bytes'] for made in hand.values()))}"
    name = min(fitting, key=lambda name: fitting[name]["step_s"])
    return f"{1e3 * fitting[name]['step_s']:.1f} ms (`{name}`)"


if __name__ == "__main__":
    main()
