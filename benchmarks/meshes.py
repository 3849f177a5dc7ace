"""A transformer over eight H200s, laid out in four ways: counted by device, planned, with partitions asked and chosen.

Compile-only: eight devices that need not be there. Makes the tables of docs/meshes.md from its results (`--tables`
alone makes them from what is kept).
"""

import argparse
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import jaxckpt
from benchmarks.record import keep, made_with, read
from benchmarks.tables import ROOT, write
from jaxckpt import Footprint, InfeasibleBudgetError, Planner, Policy
from jaxckpt._units import format_bytes
from jaxckpt.ir import Offload, Partition, Save
from jaxckpt.policy import Match, Rule

TARGET = "h200:8"
LAYERS, WIDTH, HEADS, TOKENS, BATCH = 6, 1024, 16, 1024, 16
SHARE = 0.5
"""Of the footprint without a plan, asked for as a budget."""
CHOSEN_SHARES = (0.5, 0.3, 0.25, 0.235)
"""The same, with and without shards that the planner chooses."""
PLAIN = (("xla_gpu_enable_latency_hiding_scheduler", False),)
"""Without the scheduler that hides exchanges, whatever that takes, XLA orders kernels for least memory."""
COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How arrays are split over a mesh.

    Attributes:
      about: For people.
      axes: Of the mesh, with their sizes.
      batch: Axes of the batch's dimensions.
      weights: For each weight the axes of its dimensions.
      between: Axes of what passes from block to block, as a constraint; None for none.
    """

    about: str
    axes: Mapping[str, int]
    batch: tuple[Any, ...]
    weights: Mapping[str, tuple[Any, ...]]
    between: tuple[Any, ...] | None = None

    @property
    def mesh(self) -> AbstractMesh:
        """The mesh, without devices."""
        kinds = (AxisType.Auto,) * len(self.axes)
        return AbstractMesh(tuple(self.axes.values()), tuple(self.axes), axis_types=kinds)

    def sharding(self, *axes: Any) -> NamedSharding:
        """Of one array."""
        return NamedSharding(self.mesh, PartitionSpec(*axes))


SHAPES = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
_MEGATRON = {"qkv": (None, "model"), "out": ("model", None), "up": (None, "model"), "down": ("model", None)}
LAYOUTS = {
    "data": Layout(
        about="data parallel: weights whole, the batch split",
        axes={"data": 8},
        batch=("data",),
        weights=dict.fromkeys(SHAPES, ()),
    ),
    "fsdp": Layout(
        about="fully sharded: weights split over the axis of the batch",
        axes={"data": 8},
        batch=("data",),
        weights=dict.fromkeys(SHAPES, ("data", None)),
    ),
    "tensor": Layout(
        about="data by 2, tensor by 4",
        axes={"data": 2, "model": 4},
        batch=("data",),
        weights=_MEGATRON,
    ),
    "sequence": Layout(
        about="the same, and what passes between blocks split along the sequence",
        axes={"data": 2, "model": 4},
        batch=("data",),
        weights=_MEGATRON,
        between=("data", "model", None),
    ),
}


def step_over(layout: Layout, *, remat: bool = False) -> tuple[Any, tuple[Any, ...]]:
    """The step under its own jit, which says how arrays are split and what is donated; and its arguments."""

    def passed(x: Any) -> Any:
        if layout.between is not None:
            x = jax.lax.with_sharding_constraint(x, layout.sharding(*layout.between))
        return x

    def step(weights: Any, tokens: Any) -> Any:
        value, gradients = jax.value_and_grad(lambda weights: loss(weights, tokens, passed, remat=remat))(weights)
        return jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradients), value

    split = {name: layout.sharding(*axes) for name, axes in layout.weights.items()}
    shardings = ([split] * LAYERS, layout.sharding(*layout.batch))
    jitted = jax.jit(step, in_shardings=shardings, out_shardings=(shardings[0], None), donate_argnums=0)
    weights = [{name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in SHAPES.items()}] * LAYERS
    return jitted, (weights, jax.ShapeDtypeStruct((BATCH, TOKENS, WIDTH), jnp.bfloat16))


def loss(weights: Any, x: Any, passed: Callable[[Any], Any], *, remat: bool) -> Any:
    """The mean square of what comes out of the blocks."""

    def block(x: Any, each: Any) -> Any:
        x = checkpoint_name(passed(x), "block_input")
        x = passed(x + attention(normed(x), each))
        return x + jax.nn.gelu(normed(x) @ each["up"].astype(x.dtype)) @ each["down"].astype(x.dtype)

    for number, each in enumerate(weights):
        with jax.named_scope(f"block_{number}"):
            x = (jax.checkpoint(block) if remat else block)(x, each)
    return jnp.mean(x.astype(jnp.float32) ** 2)


def normed(x: Any) -> Any:
    """Root mean square normalisation."""
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + 1e-6)).astype(x.dtype)


def attention(x: Any, each: Any) -> Any:
    """Full attention of all heads."""
    batch, tokens, width = x.shape
    q, k, v = jnp.split(x @ each["qkv"].astype(x.dtype), 3, axis=-1)
    q, k, v = (part.reshape(batch, tokens, HEADS, width // HEADS) for part in (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / (width // HEADS) ** 0.5
    weighted = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(x.dtype), v)
    return weighted.reshape(batch, tokens, width) @ each["out"].astype(x.dtype)


def main() -> None:
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "layouts": lambda: {name: of_layout(name, layout) for name, layout in LAYOUTS.items()},
        "partition": partitions,
        "chosen": chosen,
        "bodies": bodies,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=parts, default=(), help="parts to make; the rest as kept")
    parser.add_argument("--tables", action="store_true", help="make the tables from what is kept")
    asked = parser.parse_args()
    if not asked.tables:
        kept = read("meshes") if asked.only else {}
        made = {name: make() if name in (asked.only or parts) else kept[name] for name, make in parts.items()}
        dates = kept.get("parts_made_with", {}) | dict.fromkeys(asked.only or parts, made_with())
        keep("meshes", {"parts_made_with": dates, **made})
    tables = {
        "layouts": layout_table("layouts", read("meshes")["layouts"]),
        "partition": partition_table(),
        "chosen": chosen_table(),
        "bodies": layout_table("bodies", {"shard_map": read("meshes")["bodies"]}),
    }
    write(ROOT / "docs" / "meshes.md", {f"meshes {name}": table for name, table in tables.items()})


def of_layout(name: str, layout: Layout) -> dict[str, Any]:
    """The step as it is, with `jax.checkpoint` on each block, with and without XLA's scheduler, and planned with it."""
    step, args = step_over(layout)
    planner = Planner(step, *args, target=TARGET, max_compiles=3)
    found: dict[str, Any] = {"about": layout.about, "as written": row(planner, planner.solver.empty_plan)}
    for called, options in {"scheduler on": (), "scheduler off": PLAIN}.items():
        by_hand, _ = step_over(layout, remat=True)
        compiled = jaxckpt.footprint(by_hand, *args, target=TARGET, compiler_options=options)
        found[f"`jax.checkpoint` on each block, {called}"] = {
            "total_bytes": compiled.total_bytes,
            "temp_bytes": compiled.temp_bytes,
            "step_s": compiled.step_s,
        }
    found |= planned(planner, {f"**jaxckpt**, {SHARE:.0%}": SHARE})
    found["**jaxckpt**, the smallest"] = row(planner, planner.smallest().plan)
    print(name, found, flush=True)
    return found


def planned(planner: Planner, budgets: Mapping[str, float]) -> dict[str, Any]:
    """A row for each budget."""
    found = {}
    for label, budget in budgets.items():
        try:
            plan = planner.plan(budget=budget)
        except InfeasibleBudgetError as error:
            found[label] = {"minimum_bytes": error.minimum_bytes}
        else:
            found[label] = {"budget_bytes": plan.budget_bytes, **row(planner, plan)}
        print(label, found[label], flush=True)
    return found


def row(planner: Planner, plan: Any) -> dict[str, Any]:
    """A plan as predicted and as compiled, with its collectives."""
    footprint = planner.measure(plan).footprint
    return {
        "total_bytes": footprint.total_bytes,
        "temp_bytes": footprint.temp_bytes,
        "step_s": footprint.step_s,
        "predicted_bytes": plan.predicted.total_bytes,
        "predicted_s": plan.predicted.step_s,
        "collectives": collectives(footprint),
    }


def collectives(footprint: Footprint) -> dict[str, int]:
    """How many of each kind run in a step."""
    assert footprint.memory is not None
    found: Counter[str] = Counter()
    for kernel in footprint.memory.kernels:
        found[kernel.opcode.removesuffix("-start")] += kernel.count
    return {kind: found[kind] for kind in COLLECTIVES if found[kind]}


### Partitions


def partitions() -> dict[str, Any]:
    """Block inputs that all of eight devices hold whole: kept whole and as shards, there or on the host."""
    layout = Layout(
        about="", axes={"model": 8}, batch=(), weights={**_MEGATRON, "qkv": (None, "model"), "out": ("model", None)}
    )
    step, args = step_over(layout)
    planner = Planner(step, *args, target=TARGET, compiler_options=PLAIN)
    found = {}
    decisions = {
        "saved whole": Save(),
        "partitioned": Partition(),
        "offloaded whole": Offload(),
        "offloaded as shards": Offload(shard=True),
    }
    for called, decision in decisions.items():
        rule = Rule(match=Match(name="block_input"), decision=decision)
        plan = planner.follow(Policy(default="recompute", rules=(rule,)))
        found[called] = {
            "kept": sum(planner.graph.values[v].name == "block_input" for v in plan.decisions),
            "host_bytes": plan.footprint.memory.most_host_bytes,
            **row(planner, plan),
        }
        print(called, found[called], flush=True)
    return found


def chosen() -> dict[str, Any]:
    """The `tensor` layout planned at several shares, with and without leave to keep shards."""
    step, args = step_over(LAYOUTS["tensor"])
    found: dict[str, Any] = {}
    for called, allow in {"recomputing alone": ("recompute",), "shards allowed": ("recompute", "partition")}.items():
        planner = Planner(step, *args, target=TARGET, compiler_options=PLAIN, allow=allow, max_compiles=3)
        for share in CHOSEN_SHARES:
            at = found.setdefault(f"{share:.1%}", {})
            try:
                plan = planner.plan(budget=share)
            except InfeasibleBudgetError as error:
                at[called] = {"minimum_bytes": error.minimum_bytes}
            else:
                shards = sum(isinstance(decision, Partition) for decision in plan.decisions.values())
                at[called] = {"budget_bytes": plan.budget_bytes, "shards": shards, **row(planner, plan)}
            print(share, called, at[called], flush=True)
    return found


### Blocks in `shard_map`

DEEP, WIDER, LONGER, FEWER = 4, 2048, 2048, 4
"""Blocks, width, tokens and sequences of the step whose tensor parallelism is written by hand."""


def bodies() -> dict[str, Any]:
    """Tensor parallelism of eight, each block in `shard_map`: as written, with `jax.checkpoint`, and planned."""
    step, args = step_by_hand()
    planner = Planner(step, *args, target=TARGET, max_compiles=3)
    found: dict[str, Any] = {"as written": row(planner, planner.solver.empty_plan)}
    by_hand, _ = step_by_hand(remat=True)
    compiled = jaxckpt.footprint(by_hand, *args, target=TARGET)
    found["`jax.checkpoint` on each block"] = {
        "total_bytes": compiled.total_bytes,
        "temp_bytes": compiled.temp_bytes,
        "step_s": compiled.step_s,
        "collectives": collectives(compiled),
    }
    by_hand_label = f"**jaxckpt**, in {format_bytes(compiled.total_bytes)}"
    return found | planned(planner, {f"**jaxckpt**, {SHARE:.0%}": SHARE, by_hand_label: compiled.total_bytes})


def step_by_hand(*, remat: bool = False) -> tuple[Any, tuple[Any, ...]]:
    """The step under its own jit, each block in `shard_map`; and its arguments."""
    kinds = (AxisType.Auto,)
    mesh = AbstractMesh((8,), ("model",), axis_types=kinds)
    specs = {
        "qkv": PartitionSpec(None, None, "model"),
        "out": PartitionSpec("model", None),
        "up": PartitionSpec(None, "model"),
        "down": PartitionSpec("model", None),
    }
    shapes = {
        "qkv": (WIDER, 3, WIDER),
        "out": (WIDER, WIDER),
        "up": (WIDER, 4 * WIDER),
        "down": (4 * WIDER, WIDER),
    }
    mapped = jax.shard_map(block_of_device, mesh=mesh, in_specs=(PartitionSpec(), specs), out_specs=PartitionSpec())
    block = jax.checkpoint(mapped) if remat else mapped

    def loss(weights: Any, x: Any) -> Any:
        for number, each in enumerate(weights):
            with jax.named_scope(f"block_{number}"):
                x = block(x, each)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    def step(weights: Any, x: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, x)
        return jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradients), value

    split = [{name: NamedSharding(mesh, spec) for name, spec in specs.items()}] * DEEP
    whole = NamedSharding(mesh, PartitionSpec())
    jitted = jax.jit(step, in_shardings=(split, whole), out_shardings=(split, None), donate_argnums=0)
    weights = [{name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}] * DEEP
    return jitted, (weights, jax.ShapeDtypeStruct((FEWER, LONGER, WIDER), jnp.bfloat16))


def block_of_device(x: Any, each: Any) -> Any:
    """What one of eight devices does of a block: two heads and an eighth of the hidden values."""
    batch, tokens, width = x.shape
    qkv = normed(x) @ each["qkv"].astype(x.dtype).reshape(width, -1)
    q, k, v = (heads.reshape(batch, tokens, -1, 128) for heads in jnp.split(qkv, 3, axis=-1))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / 128**0.5
    weighted = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(x.dtype), v)
    x = x + jax.lax.psum(weighted.reshape(batch, tokens, -1) @ each["out"].astype(x.dtype), "model")
    hidden = jax.nn.gelu(normed(x) @ each["up"].astype(x.dtype))
    return x + jax.lax.psum(hidden @ each["down"].astype(x.dtype), "model")


### Tables


def layout_table(part: str, layouts: Mapping[str, Any]) -> str:
    """One row a layout and plan."""
    lines = [
        "| layout | | compiled total | predicted | estimated step | collectives in the program |",
        "|---|---|---:|---:|---:|---|",
    ]
    for name, found in layouts.items():
        for called, there in found.items():
            if called == "about":
                continue
            if "minimum_bytes" in there:
                lines.append(f"| `{name}` | {called} | at least {format_bytes(there['minimum_bytes'])} | | | |")
                continue
            off = f"{there['predicted_bytes'] / there['total_bytes'] - 1:+.1%}" if "predicted_bytes" in there else ""
            told = ", ".join(f"{count} {kind}" for kind, count in there.get("collectives", {}).items())
            lines.append(
                f"| `{name}` | {called} | {format_bytes(there['total_bytes'])} | {off}"
                f" | {1e3 * there['step_s']:.2f} ms | {told} |"
            )
    return "\n".join([*lines, "", made_line(read("meshes")["parts_made_with"][part])])


def partition_table() -> str:
    """Block inputs unsharded and as shards."""
    result = read("meshes")
    lines = [
        "| block inputs | number saved | temporaries | on the host | estimated step | all-gathers |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for called, there in result["partition"].items():
        label = called.replace("whole", "unsharded")
        lines.append(
            f"| {label} | {there['kept']} | {format_bytes(there['temp_bytes'])} | {_host(there['host_bytes'])}"
            f" | {1e3 * there['step_s']:.2f} ms | {there['collectives'].get('all-gather', 0)} |"
        )
    return "\n".join([*lines, "", made_line(result["parts_made_with"]["partition"])])


def _host(size_bytes: int) -> str:
    return format_bytes(size_bytes) if size_bytes else ""


_ALLOWED = {"recomputing alone": "recompute", "shards allowed": "recompute, partition"}


def chosen_table() -> str:
    """One row a budget and what the planner may do."""
    result = read("meshes")
    lines = [
        "| budget | decisions | sharded values | compiled total | predicted | estimated step | predicted |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for share, found in result["chosen"].items():
        for key, there in found.items():
            called = _ALLOWED[key]
            if "minimum_bytes" in there:
                least = format_bytes(there["minimum_bytes"])
                lines.append(f"| {share} | {called} | | refused: at least {least} | | | |")
                continue
            off = there["predicted_bytes"] / there["total_bytes"] - 1
            lines.append(
                f"| {share} | {called} | {there['shards']} | {format_bytes(there['total_bytes'])} | {off:+.1%}"
                f" | {1e3 * there['step_s']:.2f} ms | {1e3 * there['predicted_s']:.2f} ms |"
            )
    return "\n".join([*lines, "", made_line(result["parts_made_with"]["chosen"])])


def made_line(made: Mapping[str, Any]) -> str:
    """The versions, and when, of a record of `benchmarks.record`."""
    return f"jax {made['versions']['jax']}, {made['date']}.\n"


if __name__ == "__main__":
    main()
