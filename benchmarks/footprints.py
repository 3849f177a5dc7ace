"""Where the bytes of GPT-2 small are, and what it costs to know: the compile with and without its memory map.

Prints the tables of the plain and of the planned step; keeps what reconciles, what is attributed to scopes, how equal
the blocks are, what is computed again, seconds to compile, read and draw, bytes of the page. `--pictures` only draws
the pictures of README.md and docs/footprints.md.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

import jaxckpt
from benchmarks.record import keep
from jaxckpt._units import format_bytes, parse_bytes
from jaxckpt.cli import gpt2
from jaxckpt.compiler import Footprint, compile_step
from jaxckpt.hlo import Part, Role, ScopeMemory, Use, memory_from_hlo
from jaxckpt.ir.layers import fold_layers, layer_ranges
from jaxckpt.planner import Planner
from jaxckpt.report import footprint_report, print_report

TARGET = "h200"
BUDGET = "6GiB"
ROUNDS = 3
LAYERS = 12
DOCS = Path(__file__).parents[1] / "docs"


def main(*, only_pictures: bool) -> None:
    model = gpt2.training_step(layers=LAYERS, batch=8)
    planner = Planner(model.step, *model.args, target=TARGET, donate_argnums=model.donate_argnums)
    versions = {"as written": planner.unplanned, f"planned, {BUDGET}": planner.plan(budget=BUDGET).footprint}
    jaxckpt.draw(versions["as written"], DOCS / "gpt2-memory.png")
    draw_against_budget(versions, DOCS / "gpt2-plan.png")
    if only_pictures:
        return
    data: dict[str, Any] = {"target": TARGET, "layers": LAYERS, "versions": {}}
    for name, made in versions.items():
        print_report(footprint_report(made, depth=2), Console(width=160))
        data["versions"][name] = facts(made)
    data["seconds"] = seconds(model)
    for name, found in (*data["versions"].items(), ("seconds", data["seconds"])):
        print(name)
        for key, value in found.items():
            print(f"  {key}: {value}")
    keep("footprints", data)


def draw_against_budget(versions: dict[str, Footprint], path: Path) -> None:
    """Bytes over the step for the step as written and the planned one, and the budget."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 3.6), dpi=150, layout="constrained")
    axes = figure.subplots()
    budget_bytes = parse_bytes(BUDGET)
    for (name, made), colour in zip(versions.items(), ("#c0392b", "#2471a3"), strict=True):
        fixed_bytes = made.total_bytes - made.temp_bytes
        live_gib = [(fixed_bytes + live) / 2**30 for live in made.memory.live_bytes]
        share = [100 * kernel / len(live_gib) for kernel in range(len(live_gib))]
        axes.fill_between(share, live_gib, step="post", color=colour, alpha=0.35, linewidth=0)
        axes.step(share, live_gib, where="post", color=colour, label=f"{name}: total {format_bytes(made.total_bytes)}")
    axes.axhline(budget_bytes / 2**30, color="black", linestyle="--", linewidth=1.2)
    axes.text(99.5, budget_bytes / 2**30 + 0.15, f"budget {format_bytes(budget_bytes)}", ha="right", va="bottom")
    axes.set(xlim=(0, 100), ylim=(0, None), xlabel="progress of the step (% of its kernels)", ylabel="memory (GiB)")
    axes.set_title("GPT-2 small, 12 blocks, batch 8 x 1024, compiled for one H200", loc="left", fontsize=11)
    axes.legend(loc="upper right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def facts(made: Footprint) -> dict[str, Any]:
    """What must be true of a footprint, as figures."""
    memory = made.memory
    temporaries = memory.temporaries
    blocks = [s.held_bytes for s in memory.scopes() if s.scope.startswith("GPT/block_") and s.scope.count("/") == 1]
    known_bytes = sum(b.size_bytes for b in temporaries if b.part is not Part.UNKNOWN)
    again = [kernel for kernel in memory.kernels if kernel.part is Part.RECOMPUTE]
    return {
        "total_bytes": made.total_bytes,
        "temp_bytes": made.temp_bytes,
        "temp_bytes_by_allocations": memory.temp_bytes,
        "argument_bytes": made.argument_bytes,
        "argument_bytes_by_allocations": sum(a.size_bytes for a in memory.allocations if a.use is Use.ARGUMENT),
        "problems": list(memory.problems),
        "peak_bytes": memory.peak_bytes,
        "fragmentation": memory.fragmentation,
        "attributed_share": known_bytes / sum(b.size_bytes for b in temporaries),
        "held_by_block_bytes": blocks,
        "blocks_differ_by": max(blocks) / min(blocks) - 1,
        "logits_at_peak": [
            f"{b.dtype}{list(b.shape)} {b.op}" for b in memory.alive_at(memory.peak) if b.role is Role.LOGITS
        ],
        "scopes": scopes(made),
        "recomputed_kernels": len(again),
        "recomputed_flops": sum(kernel.flops for kernel in again),
        "kernels": len(memory.kernels),
        "buffers": len(memory.buffers),
    }


def scopes(made: Footprint) -> list[dict[str, Any]]:
    """Scopes two names deep, equal layers together."""

    def alike(row: ScopeMemory) -> bool:
        return row.scope.count("/") == 1

    rows = []
    for group in fold_layers(made.memory.scopes(2), scope=lambda row: row.scope, alike=alike):
        layers = f", layers {layer_ranges(sorted(group.layers))}" if group.layers else ""
        sums = {
            key: sum(getattr(row, key) for row in group.items)
            for key in ("held_bytes", "peak_bytes", "flops", "recomputed_flops")
        }
        rows.append({"scope": group.scope, "layers": layers, **sums})
    return rows


def seconds(model: gpt2.TrainingStep) -> dict[str, Any]:
    """Bare compiles and footprints in turn; then what reading and drawing take."""
    target = jaxckpt.Target(TARGET)
    bare_s, footprint_s = [], []
    for _ in range(ROUNDS):
        bare_s.append(timed(lambda: bare_compile(model, target)))
        footprint_s.append(
            timed(lambda: compile_step(model.step, *model.args, target=target, donate_argnums=model.donate_argnums))
        )
        jax.clear_caches()
    made = compile_step(model.step, *model.args, target=target, donate_argnums=model.donate_argnums)
    assert made.program is not None
    program = made.program
    with tempfile.TemporaryDirectory() as folder:
        page, picture = Path(folder) / "map.html", Path(folder) / "map.png"
        return {
            "bare_compile_s": statistics.median(bare_s),
            "footprint_s": statistics.median(footprint_s),
            "read_s": timed(lambda: memory_from_hlo(program)),
            "page_s": timed(lambda: jaxckpt.draw(made.footprint, page)),
            "picture_s": timed(lambda: jaxckpt.draw(made.footprint, picture)),
            "page_bytes": page.stat().st_size,
        }


def bare_compile(model: gpt2.TrainingStep, target: jaxckpt.Target) -> None:
    """What `jax.jit(step).lower(...).compile()` takes, on the target's device."""
    sharding = target.sharding
    specs = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), model.args)
    jax.jit(model.step, donate_argnums=model.donate_argnums).lower(*specs).compile()


def timed(run: Any) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


if __name__ == "__main__":
    main(only_pictures="--pictures" in sys.argv)
