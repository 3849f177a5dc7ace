"""Shows that a change of the code changed no plan: predicted and compiled bytes of one plan for each of eleven steps.

    python -m benchmarks.unchanged --keep             # before the change; writes results/unchanged-py3*.json
    python -m benchmarks.unchanged [CASE ...]         # after it; exits with 1 and prints what differs

Every figure is exact: predicted bytes and seconds, compiled totals, the number of compiles, and for each kind of
decision how many values it has and their bytes. Compiled for an H200, so no GPU is needed.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from benchmarks import branches, offload, unmarked
from benchmarks.models import MODELS
from benchmarks.record import keep, read
from jaxckpt import Offloading, Plan, Planner, Policy, UnsupportedDecisionError

TARGET = "h200"
VERSION = f"py{sys.version_info[0]}{sys.version_info[1]}"
MODEL_MIB = {
    "gpt2-small": 6144,
    "llama": 30000,
    "resnet50": 5000,
    "bilstm": 2500,
    "experts": 12000,
    "gpt2-scan": 5400,
}
"""Budget of each model of `benchmarks.models`, between its least total and that without rematerialisation."""
UNMARKED_TEMP_MIB = 500
BRANCHES_MIB = {"layers": 3400, "scan": 11800}


def of_model(name: str) -> Plan:
    task = MODELS[name].step()
    planner = Planner(task.step, *task.args, target=TARGET, donate_argnums=task.donate_argnums)
    return planner.plan(budget=f"{MODEL_MIB[name]}MiB")


def of_unmarked() -> Plan:
    planner = Planner(unmarked.gradients(), *unmarked.arguments(), target=TARGET)
    return planner.plan(budget=planner.fixed_bytes + UNMARKED_TEMP_MIB * 2**20)


def of_branches(name: str) -> Plan:
    step, args = branches.made(name, lambda layer: layer)
    return Planner(step, *args, target=TARGET).plan(budget=f"{BRANCHES_MIB[name]}MiB")


def of_offload(model: str) -> Plan:
    task = MODELS[model].step()
    planner = Planner(
        task.step,
        *task.args,
        target=TARGET,
        donate_argnums=task.donate_argnums,
        offload=Offloading(bandwidth_bytes_per_s=offload.BANDWIDTH),
    )
    policy = offload.KEPT + offload.WIDE + '"offload"\n'
    return planner.follow(Policy.from_toml(policy))


CASES: dict[str, Callable[[], Plan]] = {
    **{name: lambda name=name: of_model(name) for name in MODEL_MIB},
    "unmarked": of_unmarked,
    **{f"branches {name}": lambda name=name: of_branches(name) for name in BRANCHES_MIB},
    **{f"offload {name}": lambda name=name: of_offload(name) for name in (offload.UNROLLED, offload.SCANNED)},
}


def figures(plan: Plan) -> dict[str, Any]:
    """All that must stay the same of a plan."""
    assert plan.footprint is not None
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for value in plan.described:
        kind = type(plan.decisions[value.value]).__name__.lower()
        counts[kind] += 1
        sizes[kind] += value.size_bytes
    return {
        "predicted_total_bytes": plan.predicted.total_bytes,
        "predicted_temp_bytes": plan.predicted.temp_bytes,
        "predicted_step_s": plan.predicted.step_s,
        "compiled_total_bytes": plan.footprint.total_bytes,
        "compiled_temp_bytes": plan.footprint.temp_bytes,
        "compiled_host_bytes": plan.footprint.host_temp_bytes,
        "compiles": len(plan.attempts),
        "decisions": dict(sorted(counts.items())),
        "decided_bytes": dict(sorted(sizes.items())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"some of: {', '.join(CASES)}")
    parser.add_argument("--keep", action="store_true", help="keep the figures as what later runs are held against")
    arguments = parser.parse_args()
    found = {}
    for name in arguments.cases or CASES:
        start = time.monotonic()
        try:
            found[name] = figures(CASES[name]())
        except UnsupportedDecisionError as error:  # jax 0.10.2 miscompiles offloads in scans
            found[name] = {"refused": type(error).__name__}
        print(f"{name}, {time.monotonic() - start:.0f} s: {json.dumps(found[name])}", flush=True)
    if arguments.keep:
        keep("unchanged", {"plans": found})
        return
    before = read("unchanged", VERSION)["plans"]
    changed = [name for name in found if found[name] != before[name]]
    for name in changed:
        print(f"CHANGED {name}: it was {json.dumps(before[name])}")
    print(f"{len(found) - len(changed)} of {len(found)} plans are unchanged")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
