"""Bandwidths of collectives: all-reduce, all-gather and reduce-scatter over all of this process's devices.

Figures are of the bus: the bytes that each device must send for the result, over the time. Recorded, and not used by
the estimates yet. Read after `kernels`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxckpt.calibration.kernels import Speeds
from jaxckpt.calibration.timing import Timing, timed
from jaxckpt.machine import Measured

_AXIS = "device"


def measured_collectives(
    devices: Sequence[jax.Device],
    speeds: Speeds,
    *,
    floor_s: float,
    small: bool,
    time_one: Callable[..., Timing] = timed,
) -> Iterator[Measured]:
    """Times collectives of devices of one kind, nothing for one device; starting anything takes `floor_s`."""
    count = len(devices)
    if count < 2:
        return
    size = count * (2**10 if small else 2**24)
    links = 2 if small else max(4, int(0.02 * speeds.bytes_per_s / 20 / (4 * size)))
    mesh = Mesh(devices, (_AXIS,))
    replicated = NamedSharding(mesh, PartitionSpec())
    x = jax.device_put(jnp.ones((size,), jnp.float32), replicated)
    share = (count - 1) / count
    sent = 2 * share  # of an array, by each device: both take a scatter and a gather
    for what, link in (("all-reduce", _all_reduce), ("reduce-scatter, all-gather", _scatter_gather)):
        chain = _chain(mesh, link, links)
        timing = time_one(lambda chain=chain: jax.block_until_ready(chain(x)))
        link_s = max(timing.median_s - floor_s, 1e-9) / links
        yield timing.figure(what, f"{count} devices, {x.nbytes} bytes each", sent * x.nbytes / link_s, "bytes/s")


def _chain(mesh: Mesh, link: Callable[[Any], Any], links: int) -> Callable[[Any], Any]:
    def body(x: Any) -> Any:
        return jax.lax.fori_loop(0, links, lambda _, y: jax.lax.optimization_barrier(link(y)), x)

    spec = PartitionSpec()
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))


def _all_reduce(x: Any) -> Any:
    return jax.lax.pmean(x, _AXIS)


def _scatter_gather(x: Any) -> Any:
    part = jax.lax.psum_scatter(x, _AXIS, tiled=True)
    return jax.lax.all_gather(part / jax.lax.psum(1, _AXIS), _AXIS, tiled=True)
