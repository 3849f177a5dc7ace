"""Random training steps with loops as data: scans over layers, in one another, in a row, or around a gradient."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from hypothesis import strategies as st

ROWS, WIDTH = 2, 4


@dataclass(frozen=True)
class Scan:
    """A scan over stacked weights.

    Attributes:
      body: What a turn does with the stream, in order.
      turns: How many there are.
      reverse: Whether the last weight comes first.
      stacks: Whether every turn gives a figure too.
      remat: Whether the body is under `jax.checkpoint`.
      inner: Turns of a loop in the body; 0 for none.
      unroll: As `jax.lax.scan` has it.
      masked: Whether a turn reads its slice of an array that repeats one number, too.
    """

    body: tuple[str, ...]
    turns: int = 3
    reverse: bool = False
    stacks: bool = False
    remat: bool = False
    inner: int = 0
    unroll: int = 1
    masked: bool = False


@dataclass(frozen=True)
class Looped:
    """A step of scans.

    Attributes:
      scans: One after the other.
      batches: Microbatches whose gradients are summed in a loop around it all; 0 for no such loop.
      hands_on: Whether a turn of that loop draws a factor from one that it hands on, and gives that one too.
      counts: Whether a turn of it takes its microbatch by a counter of its own.
      backwards: Whether the last microbatch comes first.
    """

    scans: tuple[Scan, ...]
    batches: int = 0
    hands_on: bool = False
    counts: bool = False
    backwards: bool = False


def build(looped: Looped) -> tuple[Any, tuple[Any, ...]]:
    """The step, from weights and an input to the loss and gradients, and its arguments."""
    weights = tuple(
        jnp.linspace(-1.0, 1.0 + i, scan.turns * WIDTH * WIDTH).reshape(scan.turns, WIDTH, WIDTH)
        for i, scan in enumerate(looped.scans)
    )
    shape = (looped.batches, ROWS, WIDTH) if looped.batches else (ROWS, WIDTH)
    x = jnp.sin(jnp.arange(ROWS * WIDTH * max(1, looped.batches), dtype=jnp.float32)).reshape(shape)

    def loss(weights: Any, x: Any, seed: Any = 1.0) -> Any:
        figure = jnp.float32(0)
        factor = jnp.cos(x) * seed
        for scan, weight in zip(looped.scans, weights, strict=True):
            x, figures = _scanned(scan, weight, x, factor)
            figure += figures.sum()
        return (x**2).sum() + figure

    def accumulated(weights: Any, xs: Any) -> Any:
        def turn(carry: Any, x: Any) -> Any:
            sums, seed, count = carry
            if looped.counts:
                x = xs[count - 1]
            if looped.hands_on:
                seed = jnp.cos(seed)
            made = jax.value_and_grad(loss)(weights, x, jnp.sin(seed))
            return (jax.tree.map(jnp.add, sums, made), seed, count + 1), jnp.sin(seed)

        zeros = (jnp.float32(0), jax.tree.map(jnp.zeros_like, weights))
        return jax.lax.scan(turn, (zeros, jnp.full((ROWS, 1), 1.5), 1), xs, reverse=looped.backwards)

    return (accumulated if looped.batches else jax.value_and_grad(loss)), (weights, x)


def _scanned(scan: Scan, weights: Any, x: Any, factor: Any) -> tuple[Any, Any]:
    def turn(x: Any, slices: Any) -> tuple[Any, Any]:
        weight, mask = slices
        if mask is not None:
            x = jnp.tanh(x) * (1 - mask)
        for kind in ("residual", *scan.body):
            x = _KINDS[kind](x, weight, factor)
        if scan.inner:
            x, _ = jax.lax.scan(lambda x, _: (jnp.sin(x @ weight) + x, None), x, None, length=scan.inner)
        return x, (x.sum() if scan.stacks else jnp.float32(0))

    body = jax.checkpoint(turn) if scan.remat else turn
    mask = jnp.full((ROWS, 1, scan.turns), 0.5).T.swapaxes(1, 2) if scan.masked else None
    return jax.lax.scan(body, x, (weights, mask), reverse=scan.reverse, unroll=scan.unroll)


_KINDS = {
    "dense": lambda x, w, _: jnp.tanh(x @ w),
    "residual": lambda x, w, _: x + jnp.sin(x @ w),
    "gate": lambda x, _, factor: x * factor,
    "normal": lambda x, *_: x / (1 + jnp.abs(x).sum(-1, keepdims=True)),
    "mask": lambda x, *_: jnp.where(jnp.tril(jnp.ones((ROWS, WIDTH), bool)), x, 0.5),
    "weight": lambda x, w, _: x + jnp.cos(w[:ROWS] * 2),
}

scans = st.builds(
    Scan,
    body=st.lists(st.sampled_from(sorted(_KINDS)), min_size=1, max_size=4).map(tuple),
    turns=st.sampled_from((1, 2, 3, 3)),
    reverse=st.booleans(),
    stacks=st.booleans(),
    remat=st.booleans(),
    inner=st.sampled_from((0, 0, 2, 3)),
    unroll=st.sampled_from((1, 1, 2)),
    masked=st.booleans(),
)
looped = st.builds(
    Looped,
    scans=st.lists(scans, min_size=1, max_size=2).map(tuple),
    batches=st.sampled_from((0, 0, 2)),
    hands_on=st.booleans(),
    counts=st.booleans(),
    backwards=st.booleans(),
)
"""Random steps."""
