"""DTR's own logs replayed: our figures beside those of DTR's simulator, and DTR, DTE and Coop on them in one memory.

    python -m benchmarks.dtr_logs LOGS                       # the folder that simrd/logs.zip unpacks to
    python -m benchmarks.dtr_logs LOGS unet --simrd SIMRD    # one of them, by DTR's simulator again, too: minutes

LOGS and SIMRD are parts of github.com/uwsampl/dtr-prototype, which has no licence: neither is in this repository. The
logs are of PyTorch ops with measured times on one GPU of 2020. `results/dtr-logs` keeps for each log:

- `ours` and `simrd`, what DTR's simulator counts: for each rule and share of the memory the multiple of the time
  without eviction, counted by bytes as in DTR's paper. A text says why a run did not end; None stands where DTR's
  simulator was not asked, as it is slow where much is recomputed. Shares are of `simrd.whole_bytes`, in which
  constants are freed.
- `memories`: DTR, DTE and Coop, each in one block of memory with addresses, as in `benchmarks.coop`.
"""

import argparse
import math
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.record import keep, read
from jaxckpt.dynamic import Program, TrainingOptions, min_budget, read_log, simulate, unlimited_bytes

RATIOS = tuple(i / 10 for i in range(1, 11))
HEURISTICS = {
    "dtr_eq": "DTREqClass",
    "local": "DTRLocal",
    "lru": "LRU",
    "size": "LargestStorage",
    "msps": "MSPS",
}
"""Our names of rules, and DTR's."""
PATIENCE_S = 100
"""Seconds after which DTR's simulator is not asked for smaller shares of a rule."""
LIMIT = 2.0
"""Multiple of the time at which DTR's evaluation gives a run up."""
RULES = ("dtr", "dte", "coop", "coop_by_byte")
WITHIN = 5e-4
"""Figures of three decimals are equal."""


def ours(program: Program, rule: str, most_bytes: int) -> list[float | str]:
    """Multiples of the time without eviction at all shares, by bytes."""
    budgets = [int(ratio * most_bytes) for ratio in RATIOS]
    runs = simulate(program, budget=budgets, evictor=rule, limit=LIMIT - 1, processes=1)
    return [run.overhead if run.ok else str(run.status) for run in runs]


def simrds(log: Path) -> dict[str, Any]:
    """The same by DTR's simulator, which has to be importable, by rule; and the bytes that shares are of."""
    runtime, heuristic, parse = (import_module(f"simrd.{name}") for name in ("runtime", "heuristic", "parse"))
    with log.open() as lines:
        run = parse.parse_file(lines, start=True).get_closure()
    plain = runtime.RuntimeV1(math.inf, heuristic.Heuristic(), stats=False, trace=False)
    run(plain)
    base, most_bytes = (plain.telemetry.summary[name] for name in ("model_compute", "max_memory"))
    rows: dict[str, list[float | str | None]] = {}
    for rule, name in HEURISTICS.items():
        begin, found = time.perf_counter(), []
        for ratio in reversed(RATIOS):
            if time.perf_counter() - begin > PATIENCE_S:
                found.append(None)
                continue
            made, limit, budget = getattr(heuristic, name)(), base * (LIMIT - 1), int(ratio * most_bytes)
            one = runtime.RuntimeV2EagerOptimized(budget, made, remat_limit=limit, trace=False, stats=False)
            try:
                run(one)
                found.append(one.clock / base)
            except MemoryError:
                found.append("out of memory")
            except runtime.RematExceededError:
                found.append("thrash")
        rows[rule] = found[::-1]
    return {"whole_bytes": most_bytes, "rows": rows}


def memories(program: Program) -> dict[str, Any]:
    """Rules in one block of memory: multiples of the time and fragmentation at all shares, and the least budget."""
    most_bytes, found = unlimited_bytes(program), {}
    for name, options in TrainingOptions(evictors=RULES, limit=LIMIT - 1).runs().items():
        budgets = [int(ratio * most_bytes) for ratio in RATIOS]
        runs = simulate(program, budget=budgets, options=options, processes=1)
        least = min_budget(program, options=options, unit_bytes=-(-most_bytes // 1000))
        found[name] = {
            "overhead": [run.overhead if run.ok else str(run.status) for run in runs],
            "free_share": [run.free_share for run in runs],
            "least_ratio": least / most_bytes,
        }
    return found


def equal(ours: list[float | str], simrd: list[float | str | None]) -> list[bool]:
    """For each share that DTR's simulator was asked for, whether both find the same."""
    return [
        left == right if isinstance(left, str) or isinstance(right, str) else abs(left - right) < WITHIN
        for left, right in zip(ours, simrd, strict=True)
        if right is not None
    ]


def replayed(log: Path, simrd: dict[str, Any]) -> dict[str, Any]:
    """Everything that is kept of a log."""
    program, rows = read_log(log), {}
    for rule, theirs in simrd["rows"].items():
        rows[rule] = ours(program, rule, simrd["whole_bytes"])
        same = equal(rows[rule], theirs)
        print(f"{log.name}: {rule}, {sum(same)} of {len(same)} cells are equal", flush=True)
    return {
        "calls": len(program.calls),
        "whole_bytes": unlimited_bytes(program),
        "simrd": simrd,
        "ours": rows,
        "memories": memories(program),
    }


def cells(logs: dict[str, Any]) -> list[bool]:
    """Whether both simulators find the same, for each log, rule and share."""
    found = []
    for log in logs.values():
        for rule, figures in log.get("ours", {}).items():
            found += equal(figures, log["simrd"]["rows"][rule])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("logs", type=Path)
    parser.add_argument("names", nargs="*", help="beginnings of names; by default all logs, the small ones first")
    parser.add_argument("--simrd", type=Path, help="the folder simrd of dtr-prototype")
    chosen = parser.parse_args()
    if chosen.simrd:
        sys.path.insert(0, str(chosen.simrd))
        sys.setrecursionlimit(10**5)
    kept = read("dtr-logs")["logs"]
    for log in sorted(chosen.logs.glob("*.log"), key=lambda path: path.stat().st_size):
        name = log.name.split("-")[0]
        if not chosen.names or name in chosen.names:
            kept[name] = replayed(log, simrds(log) if chosen.simrd else kept[name]["simrd"])
            keep("dtr-logs", {"ratios": RATIOS, "logs": kept})
    same = cells(kept)
    print(f"{sum(same)} of {len(same)} cells are equal")


if __name__ == "__main__":
    main()
