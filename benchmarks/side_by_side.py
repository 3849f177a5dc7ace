"""Compiles of one frontier, one after the other and several at once: wall time here, and the schedule for 16 cores.

Each number of compiles at once runs in a process of its own, so that nothing was compiled before. The schedule is what
`jaxckpt.compiler.most_compiles` asks for on a machine of 16 cores, with the seconds that each compile took alone here.
"""

import heapq
import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

from benchmarks.models import MODELS
from benchmarks.record import keep
from jaxckpt.compiler import most_compiles, side_by_side
from jaxckpt.planner import Planner

MODEL = "gpt2-small"
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
"""Budgets, as shares of the temporaries without a plan: each gives one program to compile."""
AT_ONCE = (1, 2, 3)
CORES = 16


def main() -> None:
    found: dict[str, Any] = {}
    for most in AT_ONCE:
        command = [sys.executable, "-m", "benchmarks.side_by_side", str(most)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        run = found[str(most)] = json.loads(printed.splitlines()[-1])
        print(
            f"{most} at once on {os.cpu_count()} cores: {run['wall_s']:5.1f} s, {run['cpu_s']:5.1f} s of CPU,"
            f" {run['resident_bytes'] / 2**20:6,.0f} MiB",
            flush=True,
        )
    alone = found["1"]
    workers = most_compiles(cores=CORES, free_bytes=64 * 2**30, used_bytes=alone["resident_bytes"])
    ends = schedule(alone["compile_s"], workers)
    print(f"{CORES} cores, {workers} at once: the last of {len(ends)} ends after {max(ends):.1f} s")
    keep("side_by_side", {"model": MODEL, "at_once": found, "schedule": {"workers": workers, "ends_s": ends}})


def compile_all(most: int) -> dict[str, Any]:
    """Compiles all programs, so many at once."""
    task = MODELS[MODEL].step()
    planner = Planner(task.step, *task.args, target="h200", donate_argnums=task.donate_argnums)
    temp_bytes = planner.solver.empty_plan.predicted.temp_bytes
    plans = [planner.solver.solve(int(share * temp_bytes)) for share in SHARES]
    side_by_side.most_compiles = lambda: most
    steps = [planner._lowered(plan) for plan in plans]
    began, began_cpu = time.perf_counter(), time.process_time()
    made = side_by_side.compile_side_by_side(steps)
    return {
        "wall_s": time.perf_counter() - began,
        "cpu_s": time.process_time() - began_cpu,
        "compile_s": [each.footprint.compile_s for each in made],
        "resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def schedule(seconds: list[float], workers: int) -> list[float]:
    """When each compile ends: the first runs alone, the others on the next worker that is free.

    Example:
      >>> schedule([1.0, 2.0, 1.0, 1.0], workers=2)
      [1.0, 3.0, 2.0, 3.0]
    """
    ends = [seconds[0]]
    free = [seconds[0]] * workers
    for each in seconds[1:]:
        ends.append(heapq.heappop(free) + each)
        heapq.heappush(free, ends[-1])
    return ends


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(compile_all(int(sys.argv[1]))))
    else:
        main()
