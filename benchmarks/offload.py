"""Residuals of GPT-2 small that wait on the host, blocks unrolled or scanned: what leaves, and what hides the copies.

The projections into attention are kept, the wide layer of each block is offloaded, everything else is computed again;
beside it the same with the wide layer kept or not kept at all, and JAX's own policy for offloading. Compiled for
machines that need not be there. Makes the tables of docs/offload.md from its results (`--tables` alone makes them from
what is kept).
"""

import argparse
from typing import Any

import jax

import jaxckpt
from benchmarks.models import MODELS
from benchmarks.models.blocks import rematerialised
from benchmarks.record import keep, read
from benchmarks.tables import ROOT, write
from jaxckpt import Footprint, Offloading, Planner, Policy
from jaxckpt._units import format_bytes
from jaxckpt.hlo import hiding, stall_s
from jaxckpt.ir import Offload

UNROLLED, SCANNED = "gpt2-small", "gpt2-scan"
CASES = {"h200": (UNROLLED, "h200"), "v5e": (UNROLLED, "v5e"), "scanned": (SCANNED, "h200")}
"""Model and machine of each table."""
BANDWIDTH = 50e9
"""Bytes per second one way, of PCIe 5.0 in practice."""
KEPT = 'default = "recompute"\n[[rule]]\nname = "qkv"\ndecision = "save"\n'
WIDE = '[[rule]]\nname = "fc"\ndecision = '
_ALL = {
    "`fc` saved": KEPT + WIDE + '"save"\n',
    "`fc` recomputed": KEPT,
    "**jaxckpt**, `fc` offloaded": KEPT + WIDE + '"offload"\n',
}
POLICIES = {
    UNROLLED: {
        **_ALL,
        "**jaxckpt**, copies of one layer": KEPT + WIDE + '"offload"\nprefetch = 1\n',
        "**jaxckpt**, copies of three layers": KEPT + WIDE + '"offload"\nprefetch = 3\n',
    },
    SCANNED: {
        **_ALL,
        "**jaxckpt**, within the iteration": KEPT + WIDE + '"offload"\nprefetch = 0\n',
        "**jaxckpt**, one iteration ahead": KEPT + WIDE + '"offload"\nprefetch = 1\n',
    },
}
OWN = "JAX's own policy, `fc` offloaded"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", action="store_true", help="make the tables from what is kept")
    arguments = parser.parse_args()
    if not arguments.tables:
        keep("offload", {"bandwidth": BANDWIDTH, "cases": {name: versions(*case) for name, case in CASES.items()}})
    write(ROOT / "docs" / "offload.md", {f"offload {name}": table(name) for name in read("offload")["cases"]})


def versions(model: str, target: str) -> dict[str, Any]:
    """All versions of a model on one machine."""
    task = MODELS[model].step()
    planner = Planner(
        task.step,
        *task.args,
        target=target,
        donate_argnums=task.donate_argnums,
        offload=Offloading(bandwidth_bytes_per_s=BANDWIDTH),
    )
    own = MODELS[model].step(remat=rematerialised(own_policy()))
    footprint = jaxckpt.footprint(own.step, *own.args, target=target, donate_argnums=own.donate_argnums)
    made = {OWN: shown(OWN, footprint, planner)}
    for called, text in POLICIES[model].items():
        plan = planner.follow(Policy.from_toml(text))
        offloads = [decision for decision in plan.decisions.values() if isinstance(decision, Offload)]
        made[called] = shown(called, plan.footprint, planner) | {
            "predicted_temp_bytes": plan.predicted.temp_bytes,
            "predicted_host_bytes": plan.predicted.host_bytes,
            "predicted_stall_s": plan.predicted.stall_s,
            "layers_out": sorted({decision.store_distance for decision in offloads}),
            "layers_back": sorted({decision.load_distance for decision in offloads}),
        }
    return made


def own_policy() -> Any:
    """What users of JAX write for the same."""
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=["qkv"],
        names_which_can_be_offloaded=["fc"],
        offload_src="device",
        offload_dst="pinned_host",
    )


def shown(called: str, footprint: Footprint | None, planner: Planner) -> dict[str, Any]:
    """What a compiled program says of its host memory and of its copies."""
    assert footprint is not None
    assert footprint.memory is not None
    memory, rates = footprint.memory, planner.problem.rates
    ways = {way: hiding(memory, rates, to_host=way == "out") for way in ("out", "back")}
    print(
        f"{called:40} {footprint.temp_bytes / 2**20:8,.0f} MiB temp, {memory.most_host_bytes / 2**20:6,.0f} MiB on the"
        f" host at once, hidden {ways['out'].share:.1%} out, {ways['back'].share:.1%} back,"
        f" {1e3 * footprint.step_s:.2f} ms + {1e3 * stall_s(memory, rates):.2f} ms",
        flush=True,
    )
    return {
        "temp_bytes": footprint.temp_bytes,
        "total_bytes": footprint.total_bytes,
        "host_temp_bytes": footprint.host_temp_bytes,
        "most_host_bytes": memory.most_host_bytes,
        "step_s": footprint.step_s,
        "stall_s": stall_s(memory, rates),
        **{
            way: {
                "copies": h.copies,
                "size_bytes": h.size_bytes,
                "hidden_bytes": h.hidden_bytes,
                "whole": h.fully_hidden,
            }
            for way, h in ways.items()
        },
    }


def table(case: str) -> str:
    """One row a version."""
    result = read("offload")
    made = result["made_with"]
    lines = [
        "| | temporaries | predicted | on the host at once | stores hidden | loads hidden | step | queueing adds |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for called, version in result["cases"][case].items():
        ways = [_hidden(version[way]) for way in ("out", "back")]
        queue = f"{1e3 * version['stall_s']:.1f} ms" if version["out"]["copies"] else ""
        said = version.get("predicted_temp_bytes")
        predicted = "" if said is None else f"{said / version['temp_bytes'] - 1:+.1%}"
        host = format_bytes(version["most_host_bytes"]) if version["most_host_bytes"] else ""
        lines.append(
            f"| {called} | {version['temp_bytes'] / 2**20:,.0f} MiB | {predicted} | {host} | {' | '.join(ways)}"
            f" | {1e3 * version['step_s']:.1f} ms | {queue} |"
        )
    bandwidth = result["bandwidth"] / 1e9
    return "\n".join([*lines, "", f"{bandwidth:.0f} GB/s each way, jax {made['versions']['jax']}, {made['date']}.", ""])


def _hidden(way: dict[str, Any]) -> str:
    if not way["copies"]:
        return ""
    return f"{way['hidden_bytes'] / way['size_bytes']:.0%} ({way['whole']} of {way['copies']} whole)"


if __name__ == "__main__":
    main()
