"""Optimiser state in host memory, for an H200: plans of the same totals with other decisions allowed.

`python -m benchmarks.host_state [STEP ...] [--minutes 10]` plans each step at shares of its total as written. *gpt2* is
GPT-2 small, 8 x 1,024 tokens; *wide* a Llama-like decoder of 8 layers of width 4,096, whose state is most of its total.
Seconds are estimates, with the time that copies delay the step. What is there is not made again.
`python -m benchmarks.tables` makes the table of docs/budgets.md.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from itertools import product
from types import MappingProxyType
from typing import Any

from benchmarks.models import gpt2, llama
from benchmarks.models.blocks import Remat, as_written
from benchmarks.models.training import TrainingStep
from benchmarks.record import keep, made_with, read
from jaxckpt import InfeasibleBudgetError
from jaxckpt._units import format_bytes
from jaxckpt.planner import Planner

NAME = "host-state"
ALLOWED = (("recompute",), ("recompute", "chunk"), ("recompute", "state"), ("recompute", "chunk", "state"))
SHARES = (0.7, 0.5, 0.35, 0.25)
MOST_COMPILES = 4


def wide(*, batch: int = 2, fused: bool = False, remat: Remat = as_written) -> TrainingStep:
    """A decoder of width 4,096: 8 layers, `batch` x 4,096 tokens, AdamW; with cuDNN attention if `fused`."""
    return llama.step(
        batch=batch,
        sequence=4096,
        layers=8,
        width=4096,
        heads=32,
        groups=8,
        hidden=14336,
        vocabulary=32000,
        fused=fused,
        remat=remat,
    )


STEPS: MappingProxyType[str, Callable[[], TrainingStep]] = MappingProxyType({"gpt2": gpt2.step, "wide": wide})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(STEPS)}")
    parser.add_argument("--minutes", type=float, default=10, help="for each step; no plan is begun later")
    arguments = parser.parse_args()
    for name in arguments.steps or STEPS:
        plan_step(name, 60 * arguments.minutes)


def known_steps() -> dict[str, Any]:
    """The steps of the result file; none where there is no file."""
    try:
        return dict(read(NAME)["steps"])
    except FileNotFoundError:
        return {}


def plan_step(name: str, seconds: float) -> None:
    """Plans a step at each share of its total, with each set of decisions allowed."""
    steps, begin = known_steps(), time.monotonic()
    made = steps.setdefault(name, {"versions": made_with()["versions"], "date": made_with()["date"], "plans": []})
    known = {(tuple(row["allow"]), row["share"]) for row in made["plans"]}
    task = STEPS[name]()
    as_written = Planner(task.step, *task.args, target="h200", donate_argnums=task.donate_argnums).unplanned
    made |= {"total_bytes": as_written.total_bytes, "argument_bytes": as_written.argument_bytes}
    made["step_s"] = as_written.step_s
    planners = {
        allow: Planner(
            task.step,
            *task.args,
            target="h200",
            donate_argnums=task.donate_argnums,
            allow=allow,
            max_compiles=MOST_COMPILES,
        )
        for allow in ALLOWED
    }
    for share, allow in product(SHARES, ALLOWED):
        if (allow, share) in known or time.monotonic() - begin > seconds:
            continue
        row = {"allow": allow, "share": share} | planned(planners[allow], int(share * as_written.total_bytes))
        print(name, row, flush=True)
        made["plans"].append(row)
        keep(NAME, {"steps": steps})


def planned(planner: Planner, budget_bytes: int) -> dict[str, Any]:
    """Figures of a plan; of a refusal the least total."""
    begin, known = time.monotonic(), planner.compile_count
    try:
        plan = planner.plan(budget=budget_bytes)
    except InfeasibleBudgetError as error:
        return {"refused_bytes": error.minimum_bytes, "seconds": time.monotonic() - begin}
    assert plan.footprint is not None
    return {
        "total_bytes": plan.footprint.total_bytes,
        "host_bytes": plan.footprint.host_bytes,
        "predicted_bytes": plan.predicted.total_bytes,
        "predicted_s": plan.predicted.step_s,
        "bound_s": plan.predicted.bound_s,
        "predicted_as_written_s": planner.solver.empty_plan.predicted.step_s,
        "kernels_s": plan.footprint.step_s,
        "step_s": plan.estimated_step_s,
        "compiles": planner.compile_count - known,
        "seconds": time.monotonic() - begin,
    }


def planned_cell(row: Mapping[str, Any] | None) -> str:
    """A table's cell for these figures: estimated seconds, or the least total."""
    if row is None:
        return ""
    if "refused_bytes" in row:
        return f"at least {format_bytes(row['refused_bytes'])}"
    return f"{1e3 * row['step_s']:.1f} ms"


if __name__ == "__main__":
    main()
