"""Loops of many iterations: checkpoints by hand, uniform and nested, and plans that tile the loop, for an H200.

Makes the tables of tiled loops in docs/loops.md from its results (`--tables` alone makes them from what is kept).
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jaxckpt
from benchmarks.branches import figures, planned, table
from benchmarks.models import MODELS
from benchmarks.record import keep
from benchmarks.tables import ROOT, write
from jaxckpt import Planner
from jaxckpt._units import format_bytes

ALL_ITERATIONS, WIDTH, HEADS, LENGTH, BATCH, WORDS = 64, 1024, 16, 1024, 32, 8192
GROUPS, OF_A_GROUP = 8, 8
BILSTM_MIB = (1700, 1500, 767)
"""Budgets; the last is the smallest total."""
TARGET = "h200"


def block(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
    """A decoder's layer."""

    def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale

    query, key, value = (
        part.reshape(*part.shape[:2], HEADS, -1) for part in jnp.split(norm(x, w["norm"]) @ w["qkv"], 3, -1)
    )
    scores = jnp.einsum("bthd,bshd->bhts", query, key).astype(jnp.float32) * (WIDTH // HEADS) ** -0.5
    seen = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e9)).astype(x.dtype)
    x = x + jnp.einsum("bhts,bshd->bthd", weights, value).reshape(x.shape) @ w["out"]
    return x + jax.nn.gelu(norm(x, w["norm2"]) @ w["up"]) @ w["down"], None


def uniform(x: jax.Array, weights: Any) -> jax.Array:
    """All layers in one scan, each a checkpoint."""
    return jax.lax.scan(jax.checkpoint(block), x, weights)[0]


def with_tiled_loops(x: jax.Array, weights: Any) -> jax.Array:
    """Layers in groups, by hand: groups are checkpoints and so is each layer."""
    weights = jax.tree.map(lambda w: w.reshape(GROUPS, OF_A_GROUP, *w.shape[1:]), weights)
    group = jax.checkpoint(lambda x, weights: (uniform(x, weights), None))
    return jax.lax.scan(group, x, weights)[0]


def unmarked(x: jax.Array, weights: Any) -> jax.Array:
    """All layers in one scan."""
    return jax.lax.scan(block, x, weights)[0]


def decoder(layers: Callable[[jax.Array, Any], jax.Array]) -> tuple[Any, tuple[Any, ...]]:
    """The training step with its layers run in some way, and its arguments."""

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        x = params["words"][tokens].astype(jnp.bfloat16)
        x = layers(x, jax.tree.map(lambda w: w.astype(jnp.bfloat16), params["layers"]))
        logits = (x @ params["words"].T.astype(jnp.bfloat16)).astype(jnp.float32)
        right = jnp.take_along_axis(logits, tokens[..., None], -1)[..., 0]
        return (jax.nn.logsumexp(logits, -1) - right).mean()

    def step(params: Any, tokens: jax.Array) -> tuple[Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(params, tokens)
        return jax.tree.map(lambda w, g: w - 1e-3 * g, params, gradients), value

    sizes = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    params = {
        "words": jax.ShapeDtypeStruct((WORDS, WIDTH), jnp.float32),
        "layers": {name: jax.ShapeDtypeStruct((ALL_ITERATIONS, *shape), jnp.float32) for name, shape in sizes.items()}
        | {name: jax.ShapeDtypeStruct((ALL_ITERATIONS, WIDTH), jnp.float32) for name in ("norm", "norm2")},
    }
    return step, (params, jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", action="store_true", help="make the tables from what is kept")
    models = {"decoder": of_decoder, "bilstm": of_bilstm}
    if not parser.parse_args().tables:
        keep("nesting", {"models": {name: {"rows": rows()} for name, rows in models.items()}})
    write(ROOT / "docs" / "loops.md", {f"nested {name}": table("nesting", name) for name in models})


def of_decoder() -> list[dict[str, Any]]:
    """By hand, and planned for the same totals and for the smallest."""
    rows, budgets = [], []
    for label, layers in (("on each layer", uniform), (f"nested {GROUPS} x {OF_A_GROUP}", with_tiled_loops)):
        step, args = decoder(layers)
        marked = jaxckpt.footprint(step, *args, target=TARGET, donate_argnums=0)
        rows.append({"label": f"`jax.checkpoint` by hand, {label}", **figures(marked)})
        budgets.append(int(1.002 * marked.total_bytes))
        print(rows[-1], flush=True)
    step, args = decoder(unmarked)
    planner = Planner(step, *args, target=TARGET, donate_argnums=0)
    return [*rows, *of_plans(planner, [*budgets, planner.smallest().footprint.total_bytes])]


def of_bilstm() -> list[dict[str, Any]]:
    """Both loops of the zoo's recurrent network, tiled together."""
    task = MODELS["bilstm"].step()
    planner = Planner(task.step, *task.args, target=TARGET, donate_argnums=task.donate_argnums)
    return of_plans(planner, [n * 2**20 for n in BILSTM_MIB])


def of_plans(planner: Planner, budgets: list[int]) -> list[dict[str, Any]]:
    """A row for each budget."""
    rows = []
    for budget in budgets:
        rows.append({"label": f"**jaxckpt**, in {format_bytes(budget)}", **planned(planner, budget)})
        print(rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    main()
