"""Scopes that checkpoint where they stand, beside the joint engine given the same policies: GPT-2 small on an H200.

Each block is a `jaxckpt.scope` with a policy. Compiled as it is, `jax.checkpoint` carries the policy out; passed
through the planner, the checkpoint is undone and the joint engine does.
"""

from typing import Any

import jaxckpt
from benchmarks.record import keep
from jaxckpt import Planner
from jaxckpt.cli.gpt2 import Block, training_step

POLICIES = ("nothing", "dots", "dots_no_batch", "transformer")


def main() -> None:
    found = {name: compared(name) for name in POLICIES}
    keep("scopes", {"policies": found})


def compared(name: str) -> dict[str, Any]:
    step = training_step(block=jaxckpt.scope(Block, policy=name))
    there = jaxckpt.footprint(step.step, *step.args, target="h200", donate_argnums=step.donate_argnums)
    joint = Planner(step.step, *step.args, target="h200", donate_argnums=step.donate_argnums).follow(None).footprint
    assert joint is not None
    off = joint.total_bytes / there.total_bytes - 1
    totals = (f"{made.total_bytes / 2**20:8.0f} MiB" for made in (there, joint))
    print(f"{name:14} scope and joint engine {' '.join(totals)} ({off:+.2%})", flush=True)
    return {
        "scope_bytes": there.total_bytes,
        "joint_bytes": joint.total_bytes,
        "scope_s": there.step_s,
        "joint_s": joint.step_s,
    }


if __name__ == "__main__":
    main()
