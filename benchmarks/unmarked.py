"""Twelve Llama-like layers in plain JAX, without any scope or name: what blocks are found, how small it gets.

4 x 1024 tokens, width 1024, hidden 4096, bfloat16, gradients alone, compiled for an H200. Sets of values saved by name
in one `jax.checkpoint` around all layers, as measured by hand: 192 MiB saved give 784 or 1,616 MiB of temporaries; the
best per-layer mark (the attention's context kept) 288.

Makes its table in docs/frontier.md from its results (`--tables` alone makes it from what is kept).
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

import jaxckpt
from benchmarks.record import keep, read
from benchmarks.tables import ROOT, write
from jaxckpt import InfeasibleBudgetError, Planner
from jaxckpt._units import format_bytes

LAYERS, BATCH, SEQUENCE, WIDTH, HIDDEN, HEADS = 12, 4, 1024, 1024, 4096, 8
BUDGETS_MIB = (290, 310, 400, 500, 784, 1200, 2000, 3000)
"""Of temporaries."""
BY_HAND = {
    "all layers in one checkpoint, attn_out and mlp_down saved": ("whole", ("attn_out", "mlp_down")),
    "each layer in a checkpoint, nothing saved": ("layer", ()),
    "each layer in a checkpoint, context saved": ("layer", ("context",)),
}

Params = dict[str, jax.Array]


def norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)).astype(x.dtype) * weight


def layer(x: jax.Array, params: Params, named: bool) -> jax.Array:
    def name(value: jax.Array, called: str) -> jax.Array:
        return checkpoint_name(value, called) if named else value

    def heads(value: jax.Array) -> jax.Array:
        return value.reshape(BATCH, SEQUENCE, HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3)

    q, k, v = map(heads, jnp.split(norm(x, params["norm_1"]) @ params["qkv"], 3, -1))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k).astype(jnp.float32) * (WIDTH // HEADS) ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones((SEQUENCE, SEQUENCE), bool)), scores, -1e30)
    weights = jax.nn.softmax(scores, -1).astype(x.dtype)
    context = jnp.einsum("bhqk,bhkd->bhqd", weights, v).transpose(0, 2, 1, 3).reshape(BATCH, SEQUENCE, WIDTH)
    x = x + name(name(context, "context") @ params["out"], "attn_out")
    h = norm(x, params["norm_2"])
    return x + name((jax.nn.silu(h @ params["gate"]) * (h @ params["up"])) @ params["down"], "mlp_down")


def gradients(marked: str = "", saved: tuple[str, ...] = ()) -> Any:
    """The step; `marked` puts a checkpoint around each "layer" or the "whole"."""
    policy = jax.checkpoint_policies.save_only_these_names(*saved)
    block = layer if marked != "layer" else jax.checkpoint(layer, policy=policy, static_argnums=(2,))

    def stack(layers: list[Params], x: jax.Array) -> jax.Array:
        for params in layers:
            x = block(x, params, bool(marked))
        return x

    if marked == "whole":
        stack = jax.checkpoint(stack, policy=policy)

    def loss(layers: list[Params], x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((stack(layers, x).astype(jnp.float32) - y.astype(jnp.float32)) ** 2)

    return jax.grad(loss)


def arguments() -> tuple[Any, ...]:
    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    params = {
        "norm_1": array(WIDTH), "norm_2": array(WIDTH), "qkv": array(WIDTH, 3 * WIDTH), "out": array(WIDTH, WIDTH),
        "gate": array(WIDTH, HIDDEN), "up": array(WIDTH, HIDDEN), "down": array(HIDDEN, WIDTH),
    }  # fmt: skip
    x = array(BATCH, SEQUENCE, WIDTH)
    return [params] * LAYERS, x, x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", action="store_true", help="make the table from what is kept")
    if not parser.parse_args().tables:
        measure()
    write(ROOT / "docs" / "frontier.md", {"unmarked": table()})


def measure() -> None:
    """Compiles what is marked by hand, and the plans."""
    by_hand = {}
    for what, (marked, saved) in BY_HAND.items():
        there = jaxckpt.footprint(gradients(marked, saved), *arguments(), target="h200")
        by_hand[what] = {"temp_bytes": there.temp_bytes, "step_s": there.step_s}
        print(f"{what:60} {there.temp_bytes / 2**20:6,.0f} MiB {1e3 * there.step_s:6.2f} ms", flush=True)
    planner = Planner(gradients(), *arguments(), target="h200")
    plans = {}
    for budget in BUDGETS_MIB:
        try:
            plan = planner.plan(budget=planner.fixed_bytes + budget * 2**20)
        except InfeasibleBudgetError as error:
            plans[str(budget)] = {"minimum_temp_bytes": error.minimum_bytes - planner.fixed_bytes}
            print(f"{budget} MiB cannot be met; smallest {(error.minimum_bytes - planner.fixed_bytes) / 2**20:.0f} MiB")
            continue
        assert plan.footprint is not None
        plans[str(budget)] = {
            "temp_bytes": plan.footprint.temp_bytes,
            "step_s": plan.footprint.step_s,
            "predicted_temp_bytes": plan.predicted.temp_bytes,
            "compiles": len(plan.attempts),
        }
        print(
            f"{budget:5} MiB: {plan.footprint.temp_bytes / 2**20:6,.0f} MiB {1e3 * plan.footprint.step_s:6.2f} ms,"
            f" predicted {plan.predicted.temp_bytes / 2**20:6,.0f} MiB, {len(plan.attempts)} compiles",
            flush=True,
        )
    keep("unmarked", {"by_hand": by_hand, "plans": plans})


def table() -> str:
    """One row a mark or plan."""
    result = read("unmarked")
    made = result["made_with"]
    lines = ["| | temporaries | predicted | estimated step | compiles |", "|---|---:|---:|---:|---:|"]
    for what, there in result["by_hand"].items():
        lines.append(f"| {what} | {format_bytes(there['temp_bytes'])} | | {1e3 * there['step_s']:.2f} ms | |")
    for budget, plan in result["plans"].items():
        label = f"**jaxckpt**, {int(budget):,} MiB"
        if "minimum_temp_bytes" in plan:
            lines.append(f"| {label} | refused: at least {format_bytes(plan['minimum_temp_bytes'])} | | | |")
            continue
        lines.append(
            f"| {label} | {format_bytes(plan['temp_bytes'])} | {format_bytes(plan['predicted_temp_bytes'])}"
            f" | {1e3 * plan['step_s']:.2f} ms | {plan['compiles']} |"
        )
    return "\n".join([*lines, "", f"jax {made['versions']['jax']}, compiled for an H200, {made['date']}.", ""])


if __name__ == "__main__":
    main()
