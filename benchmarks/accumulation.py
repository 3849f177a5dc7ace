"""Gradients accumulated over microbatches in a scan: marked by hand and planned, for an H200.

Makes the tables of them in docs/loops.md from its results (`--tables` alone makes them from what is kept).
"""

import argparse
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import jaxckpt
from benchmarks.branches import figures, planned, table
from benchmarks.models.tasks import cross_entropy
from benchmarks.models.training import ADAMW
from benchmarks.record import keep
from benchmarks.tables import ROOT, write
from jaxckpt import Planner
from jaxckpt._units import format_bytes
from jaxckpt.cli.gpt2 import GPT, Block

MICROBATCHES, BATCH, LENGTH, WORDS, WIDTH, LAYERS = 4, 8, 1024, 50304, 512, 6
SHARES = (0.0, 0.1, 0.25, 0.5)
"""Budgets: of what the step takes as written beyond the least that a plan takes."""
TARGET = "h200"


class Layer(nn.Module):
    """A GELU MLP, four times as wide within, added to the stream."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (..., width) to the same."""
        return x + nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(4 * x.shape[-1])(x)))


class MLP(nn.Module):
    """Layers over features that are there."""

    layer: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (..., width) to the same."""
        for i in range(LAYERS):
            x = self.layer(name=f"layer_{i}")(x)
        return x


def made(name: str, mark: Callable[[Any], Any]) -> tuple[Any, tuple[Any, ...]]:
    """The step of a model with its blocks marked in some way, and its arguments."""
    if name == "gpt2-small":
        model: nn.Module = GPT(layers=12, width=768, heads=12, vocabulary=WORDS, sequence=LENGTH, block=mark(Block))
        batches = jax.ShapeDtypeStruct((MICROBATCHES, BATCH, LENGTH + 1), jnp.int32)
        example = jnp.zeros((1, LENGTH), jnp.int32)
    else:
        model = MLP(layer=mark(Layer))
        batches = jax.ShapeDtypeStruct((MICROBATCHES, BATCH, LENGTH, WIDTH), jnp.float32)
        example = jnp.zeros((1, WIDTH))

    def loss(params: Any, batch: jax.Array) -> jax.Array:
        if name == "gpt2-small":
            return cross_entropy(model.apply({"params": params}, batch[:, :-1]), batch[:, 1:])
        return jnp.mean(model.apply({"params": params}, batch) ** 2)

    def step(params: Any, state: Any, batches: jax.Array) -> tuple[Any, Any, jax.Array]:
        def turn(sums: Any, batch: jax.Array) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, sums, jax.value_and_grad(loss)(params, batch)), None

        nothing = jnp.float32(0), jax.tree.map(jnp.zeros_like, params)
        value, gradients = jax.lax.scan(turn, nothing, batches)[0]
        updates, state = ADAMW.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value / MICROBATCHES

    params = jax.eval_shape(lambda: model.init(jax.random.key(0), example)["params"])
    return step, (params, jax.eval_shape(ADAMW.init, params), batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", action="store_true", help="make the tables from what is kept")
    models = ("mlp", "gpt2-small")
    if not parser.parse_args().tables:
        keep("accumulation", {"models": {name: {"rows": rows(name)} for name in models}})
    write(ROOT / "docs" / "loops.md", {f"accumulated {name}": table("accumulation", name) for name in models})


def rows(name: str) -> list[dict[str, Any]]:
    """What the step takes as written, marked and planned."""
    step, args = made(name, nn.remat)
    marked = jaxckpt.footprint(step, *args, target=TARGET, donate_argnums=(0, 1))
    step, args = made(name, lambda block: block)
    planner = Planner(step, *args, target=TARGET, donate_argnums=(0, 1))
    written, least = planner.unplanned, planner.smallest().footprint.total_bytes
    found = [{"label": "as written", **figures(written)}, {"label": "`nn.remat` on each block", **figures(marked)}]
    for share in SHARES:
        budget = least + int(share * (written.total_bytes - least))
        found.append({"label": f"**jaxckpt**, in {format_bytes(budget)}", **planned(planner, budget)})
        print(name, found[-1], flush=True)
    return found


if __name__ == "__main__":
    main()
