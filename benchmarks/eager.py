"""Memory of processes that train eagerly, with and without a budget: resident bytes above what the process had before.

    python -m benchmarks.eager

Each run is a process of its own. A step runs three times; the most that the process ever held resident is taken from
what it held before the arguments were made and JAX had run an op. Prints; asserts nothing.
"""

import os
import resource
import subprocess
import sys

SIZES = {
    "gpt2-small": {"batch": 16, "sequence": 256, "layers": 4, "width": 256, "heads": 4, "vocabulary": 4096},
    "resnet50": {"batch": 32, "size": 64, "blocks": (2, 2, 2), "width": 32, "classes": 100},
}
BUDGETS = (None, 0.7, 0.5)
RULES = ("dtr_eq", "coop")


def resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run_once(name: str, budget: str, evictor: str) -> None:
    """In a process of its own: prints one row."""
    import jax.numpy as jnp

    from benchmarks.models import MODELS
    from jaxckpt._units import format_bytes, format_seconds
    from jaxckpt.dynamic import Runner, simulate, unit_chain

    simulate(unit_chain(4), budget=4, evictor=evictor)  # the engine is compiled before anything is measured
    jnp.ones(8).block_until_ready()
    made = MODELS[name].step(**SIZES[name])
    share = None if budget == "None" else float(budget)
    runner = Runner(made.step, budget=share, evictor=evictor, donate_argnums=made.donate_argnums)
    before = resident_bytes()
    variables, state, batch = made.real()
    for _ in range(3):
        ran = runner(variables, state, batch)
        variables, state, _ = ran.outputs
    limit = "none" if ran.counters.budget_bytes is None else format_bytes(ran.counters.budget_bytes)
    print(
        f"{name:>12} {evictor:>7} {limit:>10} {format_bytes(ran.peak_bytes):>10} "
        f"{format_bytes(resident_bytes() - before):>10} {ran.recomputations:>6} {ran.evictions:>6} "
        f"{format_seconds(ran.counters.run_s):>10} {format_seconds(ran.compute_s):>10}",
        flush=True,
    )


def main() -> None:
    print(
        f"{'network':>12} {'rule':>7} {'budget':>10} {'arrays':>10} {'resident':>10} {'again':>6} {'evict':>6} "
        f"{'step':>10} {'in ops':>10}"
    )
    for name in SIZES:
        for budget in BUDGETS:
            for evictor in RULES[: 1 if budget is None else None]:
                command = [sys.executable, "-m", "benchmarks.eager", name, str(budget), evictor]
                environment = {**os.environ, "JAX_PLATFORMS": "cpu", "MALLOC_MMAP_THRESHOLD_": "65536"}
                done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
                failed = [line for line in done.stderr.splitlines() if "Error" in line][-1:]
                print(done.stdout.rstrip() or f"{name:>12} {evictor:>7} {budget}: {' '.join(failed)}", flush=True)


if __name__ == "__main__":
    run_once(*sys.argv[1:]) if len(sys.argv) > 1 else main()
