"""How fast the dynamic engine is: operations a second on a training step's graph, and searches against the pool's size.

    python -m benchmarks.dynamic

Prints, and keeps results/dynamic; asserts nothing. The step is the demo's GPT-2 (12 layers, about 6,000 ops), traced
and never run. Times are the best of five.
"""

import time
from typing import Any

import numpy as np

from benchmarks.record import keep
from jaxckpt.cli.gpt2 import training_step
from jaxckpt.dynamic import MEMORIES, Memory, Mode, program_from_graph, simulate
from jaxckpt.dynamic.compiled import COMPILED, entered
from jaxckpt.dynamic.search import cheapest_window
from jaxckpt.trace import trace_step

RATIOS = (0.5, 0.6, 0.7, 0.8, 0.9)
TIMES = 5
BLOCKS = (10**3, 10**4, 10**5, 10**6)


@entered
def windows(sizes, costs, need, times):
    """One search several times, without Python between them."""
    found = 0
    for _ in range(times):
        found += cheapest_window(sizes, costs, len(sizes), need, False)[1]
    return found


@entered
def one_by_one(sizes, costs, need, gone):
    """DTR's loop: the least of all until the freed bytes are enough; looks at every block each time."""
    freed = 0.0
    while freed < need:
        best, least = -1, np.inf
        for i in range(len(sizes)):
            if not gone[i] and costs[i] <= least:
                best, least = i, costs[i]
        gone[best] = True
        freed += sizes[best]
    return freed


def seconds(function, *args):
    begin = time.perf_counter()
    function(*args)
    return time.perf_counter() - begin


def print_searches() -> list[dict[str, float]]:
    rows = []
    print(f"{'blocks':>9} {'window':>12} {'a block':>9} {'one by one':>12} {'a block':>9}")
    draw = np.random.default_rng(0)
    for count in BLOCKS:
        sizes, costs = draw.integers(1, 100, count).astype(float), draw.random(count)
        need = 0.01 * sizes.sum()
        windows(sizes, costs, need, 1)
        window_s = min(seconds(windows, sizes, costs, need, 10) for _ in range(TIMES)) / 10
        line = f"{count:>9} {window_s * 1e3:>9.3f} ms {window_s / count * 1e9:>6.2f} ns"
        if count <= 10**5:
            one_by_one(sizes, costs, 1.0, np.zeros(count, dtype=bool))
            loop_s = min(seconds(one_by_one, sizes, costs, need, np.zeros(count, dtype=bool)) for _ in range(TIMES))
            line += f" {loop_s * 1e3:>9.3f} ms {loop_s / count * 1e9:>6.0f} ns"
        rows.append({"blocks": count, "window_s": window_s, **({"loop_s": loop_s} if count <= 10**5 else {})})
        print(line)
    return rows


def print_speed() -> list[dict[str, Any]]:
    rows = []
    made = training_step()
    program = program_from_graph(trace_step(made.step, *made.args, donate_argnums=made.donate_argnums).graph)
    hard = Memory(mode=Mode.HARD)
    print(f"\n{len(program.calls)} calls; compiled: {COMPILED}")
    print(
        f"{'rule':>8} {'ratio':>6} {'status':>14} {'price':>7} {'frag.':>6} {'ops':>7} {'ops/s':>9} {'searching':>10}"
    )
    for rule, memory in (("coop", MEMORIES["coop"]), ("dte", hard), ("dtr_eq", hard)):
        for ratio in RATIOS:
            runs = [simulate(program, budget=ratio, evictor=rule, memory=memory, limit=10) for _ in range(TIMES)]
            found = min(runs, key=lambda run: run.run_s)
            print(
                f"{rule:>8} {ratio:>6} {found.status:>14} {found.overhead:>7.3f} {found.free_share:>6.1%} "
                f"{found.operations:>7} {found.operations / found.run_s:>9.0f} {found.search_s / found.run_s:>10.0%}"
            )
            ops_per_s = found.operations / found.run_s
            rows.append(
                {"rule": rule, "ratio": ratio, "ok": found.ok, "overhead": found.overhead, "ops_per_s": ops_per_s}
            )
    return rows


if __name__ == "__main__":
    keep("dynamic", {"searches": print_searches(), "speed": print_speed()})
