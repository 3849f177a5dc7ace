"""Layers of two kinds that `lax.cond` chooses, in a row and in a scan: marked by hand, and planned, for an H200.

Makes the tables of the branches in docs/loops.md from its results (`--tables` alone makes them from what is kept).
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jaxckpt
from benchmarks.record import keep, read
from benchmarks.tables import ROOT, write
from jaxckpt import InfeasibleBudgetError, Planner
from jaxckpt._units import format_bytes

LAYERS = 8
SIZES = {"layers": (2048, 8192), "scan": (4096, 4096)}
"""Width and rows."""
SHARES = (0.0, 0.1, 0.25, 0.5)
"""Budgets: of what the step takes as written beyond what marking by hand leaves."""
TARGET = "h200"

Layer = Callable[[Any, jax.Array], jax.Array]


def wide(w: Any, x: jax.Array) -> jax.Array:
    """A GELU MLP, four times as wide within."""
    return x + jax.nn.gelu(x @ w["up"].astype(x.dtype)) @ w["down"].astype(x.dtype)


def deep(w: Any, x: jax.Array) -> jax.Array:
    """Three square products."""
    square = w["square"].astype(x.dtype)
    hidden = jnp.tanh(x @ square)
    return x + (jax.nn.silu(hidden @ square) * hidden) @ square


def weights(width: int, *lead: int) -> Any:
    """Parameters of a layer of either kind."""
    shapes = {"up": (width, 4 * width), "down": (4 * width, width), "square": (width, width)}
    return {name: jax.ShapeDtypeStruct((*lead, *shape), jnp.float32) for name, shape in shapes.items()}


def made(name: str, mark: Callable[[Layer], Layer]) -> tuple[Any, tuple[Any, ...]]:
    """The step, and its arguments."""
    width, rows = SIZES[name]

    def layer(w: Any, x: jax.Array, kind: jax.Array) -> jax.Array:
        return jax.lax.cond(kind > 0, mark(wide), mark(deep), w, x)

    def layers(ours: Any, x: jax.Array, kinds: jax.Array) -> jax.Array:
        if name == "scan":
            x = jax.lax.scan(lambda x, each: (layer(each[0], x, each[1]), None), x, (ours, kinds))[0]
        else:
            for i, w in enumerate(ours):
                x = layer(w, x, kinds[i])
        return jnp.mean(x.astype(jnp.float32) ** 2)

    ours = weights(width, LAYERS) if name == "scan" else [weights(width) for _ in range(LAYERS)]
    kinds = jax.ShapeDtypeStruct((LAYERS,), jnp.int32)
    return jax.value_and_grad(layers), (ours, jax.ShapeDtypeStruct((rows, width), jnp.bfloat16), kinds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", action="store_true", help="make the tables from what is kept")
    if not parser.parse_args().tables:
        keep("branches", {"models": {name: of_model(name) for name in SIZES}})
    write(ROOT / "docs" / "loops.md", {f"branches {name}": table("branches", name) for name in SIZES})


def of_model(name: str) -> dict[str, Any]:
    """What the step takes as written, marked and planned."""
    step, args = made(name, jax.checkpoint)
    marked = jaxckpt.footprint(step, *args, target=TARGET)
    step, args = made(name, lambda layer: layer)
    planner = Planner(step, *args, target=TARGET)
    written, least = planner.unplanned, marked.total_bytes
    rows = [("as written", figures(written)), ("`jax.checkpoint` on each branch", figures(marked))]
    for share in SHARES:
        budget = least + int(share * (written.total_bytes - least))
        rows.append((f"**jaxckpt**, in {format_bytes(budget)}", planned(planner, budget)))
        print(name, *rows[-1], flush=True)
    return {"rows": [{"label": label, **found} for label, found in rows]}


def planned(planner: Planner, budget: int) -> dict[str, Any]:
    """What the plan for so many bytes takes, or the smallest total where none fits."""
    try:
        plan = planner.plan(budget=budget)
    except InfeasibleBudgetError as error:
        return {"minimum_bytes": error.minimum_bytes}
    predicted = {"predicted_bytes": plan.predicted.total_bytes, "predicted_s": plan.predicted.step_s}
    loop_tilings = [[each.outer, each.inner] for each in plan.loop_tilings]
    return figures(plan.footprint) | predicted | ({"nests": loop_tilings} if loop_tilings else {})


def figures(footprint: Any) -> dict[str, Any]:
    """What is kept of a compiled step."""
    return {"total_bytes": footprint.total_bytes, "temp_bytes": footprint.temp_bytes, "step_s": footprint.step_s}


def table(file: str, name: str) -> str:
    """One row a mark or plan of a model, from a file of results."""
    result = read(file)
    made_with = result["made_with"]
    lines = ["| | compiled total | temporaries | estimated step | predicted |", "|---|---:|---:|---:|---:|"]
    for row in result["models"][name]["rows"]:
        if "minimum_bytes" in row:
            lines.append(f"| {row['label']} | refused: at least {format_bytes(row['minimum_bytes'])} | | | |")
            continue
        label = row["label"]
        if "nests" in row:
            label += f", tiled {', '.join(f'{outer} x {inner}' for outer, inner in row['nests'][:1])}"
        lines.append(f"| {label} | {cells(row)} | {off(row)} |")
    return "\n".join([*lines, "", f"jax {made_with['versions']['jax']}, {made_with['date']}.", ""])


def cells(row: dict[str, Any]) -> str:
    """What a compiled step takes, in three cells of a table."""
    return f"{format_bytes(row['total_bytes'])} | {format_bytes(row['temp_bytes'])} | {1e3 * row['step_s']:.1f} ms"


def off(row: dict[str, Any]) -> str:
    """How far the prediction of a plan is from what its step takes as compiled; nothing of a step that is no plan."""
    if "predicted_s" not in row:
        return ""
    bytes_off = row["predicted_bytes"] / row["total_bytes"] - 1
    return f"{bytes_off:+.1%} bytes, {row['predicted_s'] / row['step_s'] - 1:+.1%} seconds"


if __name__ == "__main__":
    main()
