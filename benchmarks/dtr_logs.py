"""DTR's own logs replayed: our figures beside those of DTR's simulator, and DTR, DTE and Coop on them in one memory.

    python -m benchmarks.dtr_logs LOGS                       # the folder that simrd/logs.zip unpacks to
    python -m benchmarks.dtr_logs LOGS --simrd SIMRD         # DTR's simulator is run again, too: minutes

LOGS and SIMRD are parts of github.com/uwsampl/dtr-prototype, which has no licence: neither is in this repository. The
logs are of PyTorch ops with measured times on one GPU of 2020. `results/dtr-logs` keeps two tables:

- `cells`: for each log, rule and share of the memory the multiple of the time without eviction, counted by bytes as in
  DTR's paper: "ours", and "simrd", what DTR's simulator counts. A text says why a run did not end.
- `memories`: DTR, DTE and Coop, each in one block of memory with addresses, as in `benchmarks.coop`.
"""

import argparse
import json
import math
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.record import keep, read
from jaxckpt.dynamic import Program, TrainingOptions, live_bytes, min_budget, read_log, simulate

RATIOS = tuple(i / 10 for i in range(1, 11))
HEURISTICS = {
    "dtr": "DTR",
    "dtr_eq": "DTREqClass",
    "local": "DTRLocal",
    "lru": "LRU",
    "size": "LargestStorage",
    "msps": "MSPS",
}
"""Our names of rules, and DTR's."""
EXACT = ("unet", "resnet32")
"""Logs whose neighbourhoods DTR's simulator walks within a minute."""
LIMIT = 2.0
"""Multiple of the time at which DTR's evaluation gives a run up."""
RULES = ("dtr", "dte", "dtr_oneflow", "dte_oneflow", "coop", "coop_by_byte")
WITHIN = 5e-4
"""Figures of three decimals are equal."""


def ours(program: Program, rule: str) -> list[float | str]:
    """Multiples of the time without eviction at all shares, by bytes."""
    budgets = [int(ratio * live_bytes(program)) for ratio in RATIOS]
    runs = simulate(program, budget=budgets, evictor=rule, limit=LIMIT - 1, processes=1)
    return [run.overhead if run.ok else str(run.status) for run in runs]


def simrds(log: Path, rule: str) -> list[float | str]:
    """The same by DTR's simulator, which has to be importable."""
    runtime, heuristic, parse = (import_module(f"simrd.{name}") for name in ("runtime", "heuristic", "parse"))
    with log.open() as lines:
        run = parse.parse_file(lines, start=True).get_closure()
    plain = runtime.RuntimeV1(math.inf, heuristic.Heuristic(), stats=False, trace=False)
    run(plain)
    base, memory = (plain.telemetry.summary[name] for name in ("model_compute", "max_memory"))
    found: list[float | str] = []
    for ratio in RATIOS:
        made = getattr(heuristic, HEURISTICS[rule])()
        limit = base * (LIMIT - 1)
        one = runtime.RuntimeV2EagerOptimized(int(ratio * memory), made, remat_limit=limit, trace=False, stats=False)
        try:
            run(one)
            found.append(one.clock / base)
        except MemoryError:
            found.append("out of memory")
        except runtime.RematExceededError:
            found.append("thrash")
    return found


def memories(program: Program) -> dict[str, Any]:
    """Rules in one block of memory: multiples of the time and fragmentation at all shares, and the least budget."""
    whole_bytes, found = live_bytes(program), {}
    for name, options in TrainingOptions(evictors=RULES, limit=LIMIT - 1).runs().items():
        budgets = [int(ratio * whole_bytes) for ratio in RATIOS]
        runs = simulate(program, budget=budgets, options=options, processes=1)
        least = min_budget(program, options=options, unit_bytes=-(-whole_bytes // 1000))
        found[name] = {
            "overhead": [run.overhead if run.ok else str(run.status) for run in runs],
            "free_share": [run.free_share for run in runs],
            "least_ratio": least / whole_bytes,
        }
    return found


def equal(row: dict[str, Any]) -> list[bool]:
    """For each share whether both simulators find the same."""
    return [
        left == right if isinstance(left, str) or isinstance(right, str) else abs(left - right) < WITHIN
        for left, right in zip(row["ours"], row["simrd"], strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("logs", type=Path)
    parser.add_argument("--simrd", type=Path, help="the folder simrd of dtr-prototype")
    chosen = parser.parse_args()
    if chosen.simrd:
        sys.path.insert(0, str(chosen.simrd))
        sys.setrecursionlimit(10**5)
    kept = {} if chosen.simrd else {(row["log"], row["rule"]): row["simrd"] for row in read("dtr-logs")["cells"]}
    cells, tables = [], {}
    for model in json.loads((chosen.logs / "manifest.json").read_text())["models"]:
        log = chosen.logs / Path(model["log"]).name
        name, program = log.name.split("-")[0], read_log(log)
        for rule in HEURISTICS:
            if rule == "dtr" and name not in EXACT:
                continue
            theirs = simrds(log, rule) if chosen.simrd else kept[name, rule]
            cells.append({"log": name, "rule": rule, "ours": ours(program, rule), "simrd": theirs})
            print(name, rule, f"{sum(equal(cells[-1]))} of {len(RATIOS)} cells are equal", flush=True)
        tables[name] = {
            "title": model["title"],
            "calls": len(program.calls),
            "whole_bytes": live_bytes(program),
            "rules": memories(program),
        }
    keep("dtr-logs", {"ratios": RATIOS, "cells": cells, "memories": tables})
    same = sum(sum(equal(row)) for row in cells)
    print(f"{same} of {len(cells) * len(RATIOS)} cells are equal")


if __name__ == "__main__":
    main()
