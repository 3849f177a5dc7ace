"""Every ready policy on GPT-2 small: what it compiles to for an H200, one compile each.

Policies that partition need a mesh: they are measured on eight devices that all hold the whole batch, beside the same
policy without shards: XLA takes the shards up and splits the work between them too. Results go to
results/policies-*.json, and the line "Measured" of each file in policies/ is made of them by `benchmarks.tables`.
"""

import time
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxckpt
from benchmarks.record import keep
from jaxckpt import Planner, Policy, Target
from jaxckpt.cli.gpt2 import training_step
from jaxckpt.ir import Partition


def main() -> None:
    policies = {name: jaxckpt.load_policy(name) for name in jaxckpt.policies()}
    split = {name for name, policy in policies.items() if any(isinstance(r.decision, Partition) for r in policy.rules)}
    one, eight = planner(None), planner(Target("h200:8"))
    found = {"as written": figures(one, None)}
    for name, policy in policies.items():
        found[name] = figures(eight if name in split else one, policy)
    beside = figures(eight, jaxckpt.load_policy("inputs"))
    keep("policies", {"policies": found, "inputs on 8 devices": beside, "on 8 devices": sorted(split)})


def planner(target: Target | None) -> Planner:
    step = training_step()
    args: Any = step.args
    if target is not None:
        whole = NamedSharding(Mesh(np.array(target.devices), ("model",)), PartitionSpec())
        args = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole), args)
    return Planner(step.step, *args, target=target or "h200", donate_argnums=step.donate_argnums)


def figures(planner: Planner, policy: Policy | None) -> dict[str, Any]:
    begun = time.perf_counter()
    plan = planner.follow(policy)
    footprint, prediction = plan.footprint, plan.predicted
    assert footprint is not None
    made = {
        "total_bytes": footprint.total_bytes,
        "temp_bytes": footprint.temp_bytes,
        "host_bytes": footprint.host_temp_bytes,
        "step_s": footprint.step_s,
        "predicted_bytes": prediction.total_bytes,
        "predicted_s": prediction.step_s,
        "recompute_s": prediction.recompute_s,
        "stall_s": prediction.stall_s,
        "seconds": time.perf_counter() - begun,
    }
    totals = footprint.total_bytes / 2**30, footprint.host_temp_bytes / 2**20, prediction.total_bytes / 2**30
    print("{:24} {:6.2f} GiB, host {:5.0f} MiB, predicted {:6.2f} GiB".format(plan.strategy, *totals), flush=True)
    return made


if __name__ == "__main__":
    main()
