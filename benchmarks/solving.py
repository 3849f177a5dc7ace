"""How long a step takes to trace and to solve, and how much memory, against its number of ops: GPT-2 of many layers.

Nothing is compiled. Each size runs in a process of its own, so that memory is that of one size.
"""

import json
import resource
import subprocess
import sys
import time
from typing import Any

from benchmarks.models import MODELS
from benchmarks.record import keep
from jaxckpt.machine import Target
from jaxckpt.planner.gc_pause import collector_paused
from jaxckpt.solve import OptimalSolver, Problem
from jaxckpt.trace import trace_step

LAYERS = (3, 12, 24, 48, 96, 192)
SHARES = (0.5, 0.3, 0.8)
"""Budgets in turn, as shares of the temporaries without a plan; the first includes what is done once."""


def main() -> None:
    sizes = {}
    for layers in LAYERS:
        command = [sys.executable, "-m", "benchmarks.solving", str(layers)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = sizes[str(layers)] = json.loads(printed.splitlines()[-1])
        print(
            f"{layers:4} layers {found['ops']:7,} ops: trace {found['trace_s']:5.1f} s, first budget"
            f" {found['solve_s'][0]:5.1f} s, later {', '.join(f'{s:.1f}' for s in found['solve_s'][1:])} s,"
            f" {found['resident_bytes'] / 2**20:6,.0f} MiB, gap {max(filter(None, found['gap']), default=0.0):.1%}",
            flush=True,
        )
    keep("solving", {"sizes": sizes})


def of_size(layers: int) -> dict[str, Any]:
    """Traces and solves one size."""
    task = MODELS["gpt2-small"].step(layers=layers)
    with collector_paused():
        began = time.perf_counter()
        graph = trace_step(task.step, *task.args, donate_argnums=task.donate_argnums).graph
        trace_s = time.perf_counter() - began
        began = time.perf_counter()
        solver = OptimalSolver(Problem(graph=graph, rates=Target("h200").rates))
        most_bytes = solver.empty_plan.predicted.temp_bytes
        solve_s, gap = [], []
        for share in SHARES:
            plan = solver.solve(int(share * most_bytes))
            solve_s.append(time.perf_counter() - began)
            gap.append(plan.predicted.gap)
            began = time.perf_counter()
    resident_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "ops": len(graph.ops), "trace_s": trace_s, "solve_s": solve_s, "gap": gap, "resident_bytes": resident_bytes,
    }  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(of_size(int(sys.argv[1]))))
    else:
        main()
