"""Steps that scan over layers or time: marked by hand, and planned at several budgets, for an H200.

Makes the tables of docs/loops.md from its results (`--tables` alone makes them from what is kept).
"""

import argparse
from typing import Any

import jaxckpt
from benchmarks.branches import cells, figures, off
from benchmarks.frontier import WITHOUT, by_hand
from benchmarks.models import MODELS
from benchmarks.record import keep, read
from benchmarks.tables import ROOT, write
from jaxckpt import InfeasibleBudgetError, Planner
from jaxckpt._units import format_bytes

BUDGETS_MIB = {
    "gpt2-scan": (4467, 4600, 5000, 5200, 5400, 5700, 6500, 8000, 12000),
    "bilstm": (1500, 1700, 2000, 2500, 3000, 3500, 4000, 5000),
}
"""Of all bytes; the first is what marking by hand gets to, or less."""
TARGET = "h200"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", action="store_true", help="make the tables from what is kept")
    if not parser.parse_args().tables:
        keep("loops", {"models": {name: of_model(name, budgets) for name, budgets in BUDGETS_MIB.items()}})
    write(ROOT / "docs" / "loops.md", {f"loops {name}": table(name) for name in BUDGETS_MIB})


def of_model(name: str, budgets: tuple[int, ...]) -> dict[str, Any]:
    """What marks and plans take."""
    marked = {}
    for called, remat in by_hand(name).items():
        if called == "kept":
            continue
        task = MODELS[name].step(remat=remat)
        there = jaxckpt.footprint(task.step, *task.args, target=TARGET, donate_argnums=task.donate_argnums)
        marked[called] = figures(there)
        print(f"{name} {called:40} {there.total_bytes / 2**20:8,.0f} MiB {1e3 * there.step_s:6.2f} ms", flush=True)
    task = MODELS[name].step()
    planner = Planner(task.step, *task.args, target=TARGET, donate_argnums=task.donate_argnums)
    return {"by_hand": marked, "plans": {str(budget): planned(planner, name, budget) for budget in budgets}}


def planned(planner: Planner, name: str, budget: int) -> dict[str, Any]:
    """The plan for so many MiB."""
    try:
        plan = planner.plan(budget=f"{budget}MiB")
    except InfeasibleBudgetError as error:
        print(f"{name} {budget} MiB: at least {error.minimum_bytes / 2**20:,.0f} MiB", flush=True)
        return {"minimum_bytes": error.minimum_bytes}
    assert plan.footprint is not None
    print(
        f"{name} {budget:6,} MiB: {plan.footprint.total_bytes / 2**20:8,.0f} MiB {1e3 * plan.footprint.step_s:6.2f} ms,"
        f" predicted {plan.predicted.total_bytes / 2**20:8,.0f} MiB {1e3 * plan.predicted.step_s:6.2f} ms,"
        f" {len(plan.attempts)} compiles",
        flush=True,
    )
    return figures(plan.footprint) | {
        "predicted_bytes": plan.predicted.total_bytes,
        "predicted_s": plan.predicted.step_s,
        "compiles": len(plan.attempts),
        "stretches": [list(each.lengths) for each in plan.loop_splits],
        "nests": [[each.outer, each.inner] for each in plan.loop_tilings],
        "uniform": uniform(planner, budget),
    }


def uniform(planner: Planner, budget: int) -> dict[str, Any] | None:
    """The fastest compiled plan within so many MiB that splits and tiles no loop; None if there is none."""
    whole = (c for c in planner.compiled_plans() if not c.plan.loop_splits and not c.plan.loop_tilings)
    fastest = min((c for c in whole if c.fits(budget * 2**20)), key=planner.step_s_with_stalls, default=None)
    if fastest is None:
        return None
    return {"total_bytes": fastest.footprint.total_bytes, "step_s": fastest.footprint.step_s}


def table(name: str) -> str:
    """One row a mark or plan."""
    result = read("loops")
    found, made = result["models"][name], result["made_with"]
    lines = [
        "| | compiled total | temporaries | estimated step | predicted | split into | best plan without splitting |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for called, there in found["by_hand"].items():
        label = "as written" if called == WITHOUT else f"`{called}` on the body, by hand"
        lines.append(f"| {label} | {cells(there)} | | | |")
    for budget, plan in found["plans"].items():
        label = f"**jaxckpt**, {int(budget):,} MiB"
        if "minimum_bytes" in plan:
            lines.append(f"| {label} | refused: at least {format_bytes(plan['minimum_bytes'])} | | | | | |")
            continue
        lines.append(f"| {label} | {cells(plan)} | {off(plan)} | {values_in_loops(plan)} |")
    return "\n".join([*lines, "", f"jax {made['versions']['jax']}, {made['date']}.", ""])


def values_in_loops(plan: dict[str, Any]) -> str:
    """Iterations of the loops of a split plan, and what the best plan without splitting takes; else empty cells.

    For tiled loops, the number of groups and the iterations of each.
    """
    if plan.get("nests"):
        return ", ".join(f"{outer} x {inner}" for outer, inner in plan["nests"]) + ", tiled |"
    if not plan["stretches"]:
        return "|"
    parts = ", ".join(" + ".join(map(str, lengths)) for lengths in plan["stretches"])
    best = plan["uniform"]
    return f"{parts} | {format_bytes(best['total_bytes'])}, {1e3 * best['step_s']:.1f} ms"


if __name__ == "__main__":
    main()
