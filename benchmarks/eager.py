"""Training eagerly with and without a budget: losses, resident memory of the process, times; lengths that change.

    python -m benchmarks.eager                    # all; keeps results/eager
    python -m benchmarks.eager NETWORK BUDGET RULE STEPS

Each run is a process of its own that trains for twenty steps, each on a batch of its own. What the process ever held
resident is taken from what it held before the arguments were made, JAX and the engine being warm. The network of the
last runs is given sequences of another length at every step.
"""

import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

SIZES: dict[str, dict[str, Any]] = {
    "gpt2-small": {"batch": 16, "sequence": 256, "layers": 4, "width": 256, "heads": 4, "vocabulary": 1024},
    "resnet18": {"batch": 64, "size": 32, "width": 32, "classes": 10, "small_images": True},
    "bilstm-unrolled": {"batch": 256, "inputs": 32, "hidden": 64},
}
BUDGETS = ("none", "0.5")
RULES = ("dtr_eq", "coop", "coop_by_byte")
STEPS = 20
LENGTHS = (24, 9, 17, 30, 12, 21, 27, 8, 15, 29, 11, 19, 25, 14, 22, 10, 28, 16, 13, 26)
"""Of the sequences of each step; all differ."""


def resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Compilations:
    """Counts what XLA compiles in this process: single ops."""

    def __init__(self) -> None:
        import jax

        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event: str, _: float, **__: object) -> None:
        self.count += event == "/jax/core/compile/backend_compile_duration"


def run_once(name: str, budget: str, rule: str, steps: str) -> None:
    """In a process of its own: prints one row."""
    import jax
    import jax.numpy as jnp

    from benchmarks.models import MODELS
    from jaxckpt.dynamic import Runner, simulate, unit_chain

    simulate(unit_chain(4), budget=4, evictor="coop")  # the engine is compiled before anything is measured
    jnp.ones(8).block_until_ready()
    changing = name == "bilstm-unrolled"
    lengths = LENGTHS if changing else (None,) * int(steps)
    made = {n: MODELS[name].step(**SIZES[name], **({"sequence": n} if n else {})) for n in dict.fromkeys(lengths)}
    first = made[lengths[0]]
    share = None if budget == "none" else float(budget)
    options = {"donate_argnums": first.donate_argnums}
    runner = Runner(first.step, budget=share, evictor=rule, **options)
    compilations = Compilations()
    before = resident_bytes()
    variables, state, _ = first.real()
    rows, losses = [], []
    for i, n in enumerate(lengths):
        batch = made[n].batch(jax.random.key(i))
        count, begin = compilations.count, time.perf_counter()
        ran = runner(variables, state, batch)
        variables, state, loss = ran.outputs
        losses.append(float(loss).hex())
        row = {"seconds": time.perf_counter() - begin, "compilations": compilations.count - count, "length": n}
        rows.append({**row, **counters(ran)})
    found = {"network": name, "budget": budget, "evictor": rule, "losses": losses, "steps": rows}
    print(json.dumps({**found, "resident_bytes": resident_bytes() - before}))


def counters(ran: Any) -> dict[str, Any]:
    return {
        "peak_bytes": ran.peak_bytes,
        "unlimited_bytes": ran.unlimited_bytes,
        "budget_bytes": ran.counters.budget_bytes,
        "recomputations": ran.recomputations,
        "evictions": ran.evictions,
        "eager_evictions": ran.counters.eager_evictions,
        "ops": ran.counters.base_operations,
        "compute_s": ran.compute_s,
        "search_s": ran.counters.search_s,
        "trace_s": ran.trace_s,
    }


def in_a_process(*words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.eager", *words]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    if done.returncode:
        failed = [line for line in done.stderr.splitlines() if "Error" in line][-1:]
        return dict(zip(("network", "budget", "evictor"), words, strict=False), failed=" ".join(failed))
    return json.loads(done.stdout.splitlines()[-1])


def line(row: dict[str, Any], plain: dict[str, Any]) -> str:
    """A row for people, held against the plain run."""
    start = f"{row['network']:>16} {row['evictor']:>9} {row['budget']:>5}"
    if "failed" in row:
        return f"{start} {row['failed']}"
    steps = row["steps"]
    same = sum(a == b for a, b in zip(row["losses"], plain["losses"], strict=True))
    peak = max(step.get("peak_bytes", 0) for step in steps) / 2**20
    again = sum(step.get("recomputations", 0) for step in steps)
    late = steps[len(steps) // 2 :]
    return (
        f"{start} arrays {peak:>6.0f} MiB resident {row['resident_bytes'] / 2**20:>6.0f} MiB again {again:>6} "
        f"losses equal {same}/{len(steps)} late steps {sum(s['seconds'] for s in late) / len(late):>6.2f} s "
        f"compilations {sum(s['compilations'] for s in late)} of {sum(s['compilations'] for s in steps)} late"
    )


def main() -> None:
    from benchmarks.record import keep

    runs = {}
    for name in SIZES:
        cases = [(budget, rule) for budget in BUDGETS for rule in RULES[: 1 if budget == "none" else None]]
        rows = []
        for budget, rule in cases:
            rows.append(in_a_process(name, budget, rule, str(STEPS)))
            print(line(rows[-1], rows[0]), flush=True)
        runs[name] = rows
    keep("eager", {"sizes": SIZES, "steps": STEPS, "runs": runs})


if __name__ == "__main__":
    run_once(*sys.argv[1:]) if len(sys.argv) > 1 else main()
