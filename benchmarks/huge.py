"""Models that need a machine room, planned on this one: Llama 7B over eight H200s, GPT-3 175B over 512 of them.

Both scan over their layers, under a jit that says how arrays are split and what is donated; nothing is marked. Each is
asked for half of what it takes as written, and for what `jax.checkpoint` on the body takes, compiled beside it; then
with all decisions for half and for a tenth. A model has a process of its own; a plan's largest resident memory is that
of the process until the plan is made. Compile-only: no device need be there.

Makes a table of docs/meshes.md from its results (`--tables` alone makes it from what is kept).
"""

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import jaxckpt
from benchmarks.meshes import SHARE, collectives, made_line
from benchmarks.models import TrainingStep, gpt2, llama
from benchmarks.models.blocks import Remat, as_written, rematerialised
from benchmarks.record import keep, read
from benchmarks.tables import ROOT, write
from jaxckpt import Footprint, InfeasibleBudgetError, Plan, Planner
from jaxckpt._units import format_bytes

KIB = 2**10
BY_HAND = {
    "nothing_saveable": rematerialised(),
    "dots_with_no_batch_dims_saveable": rematerialised(jax.checkpoint_policies.dots_with_no_batch_dims_saveable),
}
"""What the body is wrapped in, by the name of JAX's policy."""
ALL_DECISIONS = ("recompute", "chunk", "offload", "state")
SHARES = (SHARE, 0.1)
"""Of the total as written, that are planned with all decisions."""
MATRIX = 2
"""Dimensions of a matrix, without that of its layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Huge:
    """A model and the machine that it is meant for.

    Attributes:
      about: For people.
      target: The machine.
      axes: Of its mesh, with their sizes; the batch is split over the first.
      step: The training step, by what its blocks are wrapped in and what is applied between them.
      splits: By the name of a weight's module, or "" for all others, the axes of the last two dimensions of its matrix;
        its bias, if it has one, is split as the second of them where that is not the batch's.
    """

    about: str
    target: str
    axes: Mapping[str, int]
    step: Callable[[Remat, Any], TrainingStep]
    splits: Mapping[str, tuple[str | None, str | None]]

    def sharding(self, *axes: str | None) -> NamedSharding:
        """Of one array."""
        kinds = (AxisType.Auto,) * len(self.axes)
        mesh = AbstractMesh(tuple(self.axes.values()), tuple(self.axes), axis_types=kinds)
        return NamedSharding(mesh, PartitionSpec(*axes))

    @property
    def batch(self) -> NamedSharding:
        """Of what has sequences as its first dimension."""
        return self.sharding(next(iter(self.axes)))

    def weight(self, path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        """Of a weight, or of a moment of it."""
        names = [str(getattr(key, "key", getattr(key, "name", key))) for key in path]
        module = next((name for name in names if name in self.splits), "")
        rows, columns = self.splits[module]
        if names[-1] == "bias" and module:
            return self.sharding(*(None,) * (leaf.ndim - 1), columns if columns != self.batch.spec[0] else None)
        if leaf.ndim < MATRIX or names[-1] in ("bias", "scale"):
            return self.sharding()
        return self.sharding(*(None,) * (leaf.ndim - MATRIX), rows, columns)

    def jitted(self, remat: Remat = as_written) -> tuple[Any, TrainingStep]:
        """The step under its own jit, which says how arrays are split and what is donated."""
        made = self.step(remat, lambda x: jax.lax.with_sharding_constraint(x, self.batch))
        *described, _ = made.args
        trained = [jax.tree_util.tree_map_with_path(self.weight, tree) for tree in described]
        shardings = {"in_shardings": (*trained, self.batch), "out_shardings": (*trained, None)}
        return jax.jit(made.step, **shardings, donate_argnums=made.donate_argnums), made


def llama_7b(remat: Remat, between: Any) -> TrainingStep:
    """32 layers of width 4096 (Touvron and others 2023); one sequence of 4,096 tokens on each device."""
    return llama.step(
        batch=8,
        sequence=4096,
        layers=32,
        width=4096,
        heads=32,
        groups=32,
        hidden=11008,
        vocabulary=32000,
        scanned=True,
        tied=False,
        remat=remat,
        between=between,
    )


def gpt3_175b(remat: Remat, between: Any) -> TrainingStep:
    """96 layers of width 12288 (Brown and others 2020); one sequence of 2,048 tokens on each host."""
    return gpt2.step(
        batch=64, sequence=2048, layers=96, width=12288, heads=96, scanned=True, remat=remat, between=between
    )


MODELS = {
    "Llama 7B": Huge(
        about="weights and moments split over all devices, and the batch over the same",
        target="h200:8",
        axes={"data": 8},
        step=llama_7b,
        splits={"": ("data", None)},
    ),
    "GPT-3 175B": Huge(
        about="eight-way tensor parallelism in a host; weights and moments split over the 64 hosts, and the batch",
        target="h200:64x8",
        axes={"data": 64, "model": 8},
        step=gpt3_175b,
        splits={
            "qkv": ("data", "model"),
            "proj": ("model", "data"),
            "fc": ("data", "model"),
            "fc2": ("model", "data"),
            "head": ("data", "model"),
            "Embed_0": ("model", "data"),
            "": (None, "data"),
        },
    ),
}
"""By name."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", action="store_true", help="make the table from what is kept")
    if not parser.parse_args().tables:
        fresh = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=fresh, max_tasks_per_child=1) as processes:
            keep("huge", {"models": dict(zip(MODELS, processes.map(of_model, MODELS), strict=True))})
    write(ROOT / "docs" / "meshes.md", {"meshes huge": table()})


def of_model(name: str) -> dict[str, Any]:
    """The plan for half, what it took to make, and the same by hand."""
    huge = MODELS[name]
    planner, plan, planning = planned(huge, SHARE)
    assert plan.footprint is not None
    found: dict[str, Any] = {
        "about": huge.about,
        "target": huge.target,
        "parameters": huge.jitted()[1].parameters,
        "argument_bytes": plan.footprint.argument_bytes,
        "planning": {f"{SHARE:.0%}": planning},
        "versions": {
            "as written": of_plan(planner, planner.solver.empty_plan),
            f"**jaxckpt**, {SHARE:.0%}": of_plan(planner, plan),
        },
    }
    for policy, remat in BY_HAND.items():
        step, made = huge.jitted(remat)
        by_hand = jaxckpt.footprint(step, *made.args, target=huge.target)
        found["versions"][f"`{policy}` on the body"] = figures(by_hand)
        label = f"**jaxckpt**, in {format_bytes(by_hand.total_bytes)}"
        try:
            found["versions"][label] = of_plan(planner, planner.plan(budget=by_hand.total_bytes))
        except InfeasibleBudgetError as error:
            found["versions"][label] = {"minimum_bytes": error.minimum_bytes}
    for share in SHARES:
        label = f"{share:.0%}, all decisions"
        planner, plan, found["planning"][label] = planned(huge, share, allow=ALL_DECISIONS)
        found["versions"][f"**jaxckpt**, {label}"] = of_plan(planner, plan)
    print(name, found, flush=True)
    return found


def planned(huge: Huge, share: float, **options: Any) -> tuple[Planner, Plan, dict[str, Any]]:
    """A plan for a share of the total as written, and what it took to make."""
    started_s = time.perf_counter()
    step, made = huge.jitted()
    planner = Planner(step, *made.args, target=huge.target, **options)
    traced_s = time.perf_counter()
    plan = planner.plan(budget=share)
    done_s = time.perf_counter()
    compile_s = planner.unplanned.compile_s + sum(attempt.compile_s for attempt in plan.attempts)
    return (
        planner,
        plan,
        {
            "budget_bytes": plan.budget_bytes,
            "total_s": done_s - started_s,
            "trace_s": traced_s - started_s,
            "solve_s": done_s - traced_s - compile_s,
            "compile_s": compile_s,
            "compiles": planner.compile_count,
            "peak_resident_bytes": KIB * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        },
    )


def of_plan(planner: Planner, plan: Any) -> dict[str, Any]:
    """A plan as predicted and as compiled."""
    predicted = {"predicted_bytes": plan.predicted.total_bytes, "predicted_s": plan.predicted.step_s}
    if not isinstance(plan, Plan):
        return figures(planner.measure(plan).footprint) | predicted
    return figures(plan.footprint) | predicted | {"step_s": plan.estimated_step_s}


def figures(footprint: Footprint) -> dict[str, Any]:
    """What a compiled step takes, with its collectives."""
    return {
        "total_bytes": footprint.total_bytes,
        "temp_bytes": footprint.temp_bytes,
        "host_bytes": footprint.host_bytes,
        "step_s": footprint.step_s,
        "collectives": collectives(footprint),
    }


def table() -> str:
    """One row a model and version, and what planning took."""
    result = read("huge")
    lines = [
        "| model | | compiled total | predicted | on the host | estimated step | predicted"
        " | collectives run in a step |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for name, found in result["models"].items():
        for called, there in found["versions"].items():
            if "minimum_bytes" in there:
                least = format_bytes(there["minimum_bytes"])
                lines.append(f"| {name}, `{found['target']}` | {called} | at least {least} | | | | | |")
                continue
            bytes_off = seconds_off = ""
            if "predicted_bytes" in there:
                bytes_off = f"{there['predicted_bytes'] / there['total_bytes'] - 1:+.1%}"
                seconds_off = f"{there['predicted_s'] / there['step_s'] - 1:+.1%}"
            host = format_bytes(there["host_bytes"]) if there["host_bytes"] else ""
            told = ", ".join(f"{count:,} {kind}" for kind, count in there["collectives"].items())
            lines.append(
                f"| {name}, `{found['target']}` | {called} | {format_bytes(there['total_bytes'])} | {bytes_off}"
                f" | {host} | {1e3 * there['step_s']:,.0f} ms | {seconds_off} | {told} |"
            )
    lines += [
        "",
        "| planning | budget | total time | tracing | solving | compiling (compiles) | largest resident memory |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, found in result["models"].items():
        lines += (
            f"| {name}, {label} | {format_bytes(took['budget_bytes'])} | {took['total_s']:.0f} s"
            f" | {took['trace_s']:.1f} s | {took['solve_s']:.1f} s | {took['compile_s']:.1f} s ({took['compiles']})"
            f" | {format_bytes(took['peak_resident_bytes'])} |"
            for label, took in found["planning"].items()
        )
    return "\n".join([*lines, "", made_line(result["made_with"])])


if __name__ == "__main__":
    main()
