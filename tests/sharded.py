"""Steps whose blocks run in `shard_map` over eight devices, in the ways that people write them."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

ROWS, WIDTH, WIDE = 4, 16, 64
WHOLE, COLUMNS, LINES = PartitionSpec(), PartitionSpec(None, "model"), PartitionSpec("model", None)
X = jnp.sin(jnp.arange(ROWS * WIDTH, dtype=jnp.float32)).reshape(ROWS, WIDTH)
UP = 0.3 * jnp.sin(jnp.arange(3 * WIDTH * WIDE, dtype=jnp.float32)).reshape(3, WIDTH, WIDE)
DOWN = 0.3 * jnp.cos(jnp.arange(3 * WIDTH * WIDE, dtype=jnp.float32)).reshape(3, WIDE, WIDTH)


def mesh_of(*kinds: AxisType) -> Any:
    """Eight devices in a row, or four by two."""
    shape, names = ((8,), ("model",)) if len(kinds) == 1 else ((4, 2), ("data", "model"))
    return jax.make_mesh(shape, names, axis_types=kinds)


def part(x: Any, up: Any, down: Any) -> Any:
    """What a device does of a block: its columns, some of them dropped by its own draw, and a sum over devices."""
    rank = jax.lax.axis_index("model")
    hidden = jnp.tanh(x @ up) * jnp.exp(-rank.astype(jnp.float32))
    kept = jax.random.bernoulli(jax.random.fold_in(jax.random.key(0), rank), 0.8, hidden.shape)
    return x + jax.lax.psum(jnp.sin(jnp.where(kept, hidden, 0)) @ down, "model")


def block(*, check_vma: bool, remat: bool = False, **options: Any) -> Any:
    """A block over the mesh."""
    mesh = options.pop("mesh", None) or mesh_of(AxisType.Auto)
    mapped = jax.checkpoint(part) if remat else part
    specs = options.pop("in_specs", (WHOLE, COLUMNS, LINES))
    out = options.pop("out_specs", WHOLE)
    return jax.shard_map(mapped, mesh=mesh, in_specs=specs, out_specs=out, check_vma=check_vma, **options)


def blocks(each: Any, count: int = 2) -> Any:
    """The gradient of blocks one after the other, by weights."""

    def loss(weights: Any, x: Any) -> Any:
        for number in range(count):
            with jax.named_scope(f"block_{number}"):
                x = jnp.sin(each(x, weights[0][number], weights[1][number]))
        return (x**2).sum()

    return jax.value_and_grad(loss)


def around_blocks(*, check_vma: bool, remat: bool) -> Any:
    """`jax.checkpoint` around a block, instead of in it."""
    each = block(check_vma=check_vma)
    return blocks(jax.checkpoint(each) if remat else each)


def scan_of_bodies(*, check_vma: bool, remat: bool) -> Any:
    """A body in the turns of a loop."""
    each = block(check_vma=check_vma)

    def turn(x: Any, weights: Any) -> Any:
        return each(x, *weights), None

    turning = jax.checkpoint(turn) if remat else turn
    return jax.value_and_grad(lambda weights, x: (jax.lax.scan(turning, x, weights)[0] ** 2).sum())


def body_with_scan(*, check_vma: bool, remat: bool) -> Any:
    """A loop in a body."""

    def all_turns(x: Any, up: Any, down: Any) -> Any:
        def turn(x: Any, weights: Any) -> Any:
            return part(x, *weights), None

        return jax.lax.scan(jax.checkpoint(turn) if remat else turn, x, (up, down))[0]

    specs = (WHOLE, PartitionSpec(None, None, "model"), PartitionSpec(None, "model", None))
    mesh = mesh_of(AxisType.Auto)
    mapped = jax.shard_map(all_turns, mesh=mesh, in_specs=specs, out_specs=WHOLE, check_vma=check_vma)
    return jax.value_and_grad(lambda weights, x: (mapped(x, *weights) ** 2).sum())


def gradient_in_body(*, check_vma: bool, remat: bool) -> Any:
    """The whole step in a body."""

    def inside(weights: Any, x: Any) -> Any:
        return blocks(jax.checkpoint(part) if remat else part)(weights, x)

    specs = (PartitionSpec(None, None, "model"), PartitionSpec(None, "model", None))
    mesh = mesh_of(AxisType.Auto)
    return jax.shard_map(inside, mesh=mesh, in_specs=(specs, WHOLE), out_specs=(WHOLE, specs), check_vma=check_vma)


def experts(*, check_vma: bool, remat: bool) -> Any:
    """Rows go to other devices and come back, some by way of a neighbour, and weights are gathered."""

    def dispatched(x: Any, up: Any, down: Any) -> Any:
        def exchanged(rows: Any) -> Any:
            return jax.lax.all_to_all(rows.reshape(8, -1, WIDTH), "model", 0, 0).reshape(-1, WIDTH)

        up = jax.lax.all_gather(up, "model", axis=1, tiled=True)
        hidden = jnp.tanh(exchanged(x) @ up)
        scattered = jax.lax.psum_scatter(hidden @ hidden.T, "model", scatter_dimension=0, tiled=True)
        back = exchanged(hidden @ jax.lax.all_gather(down, "model", axis=0, tiled=True))
        turned = jax.lax.ppermute(back, "model", [(i, (i + 1) % 8) for i in range(8)])
        return x + jnp.sin(turned) * scattered.mean()

    split = PartitionSpec("model")
    mapped = jax.shard_map(
        jax.checkpoint(dispatched) if remat else dispatched,
        mesh=mesh_of(AxisType.Auto),
        in_specs=(split, COLUMNS, LINES),
        out_specs=split,
        check_vma=check_vma,
    )
    step = blocks(mapped)
    return lambda weights, x: step(weights, jnp.tile(x, (16, 1)))


STEPS = {made.__name__: made for made in (around_blocks, scan_of_bodies, body_with_scan, gradient_in_body, experts)}
"""Each a step of weights and an input."""
