"""Bandwidths of links: between device and host, and of collectives over all of this process's devices.

Between device and host each direction is timed, both at once, and both while the device computes. The host's side is
pinned memory, as an offloaded residual's is. Copies are started by themselves, not in a program: their start is small
beside theirs, and is subtracted.

Figures of collectives are of the bus: the bytes that each device must send for the result, over the time. Recorded, and
not used by the estimates yet.

Read after `kernels`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxckpt.calibration.kernels import Speeds, matmul, random_array
from jaxckpt.calibration.timing import Timing, timed
from jaxckpt.machine import Measured

_HOST = "pinned_host"
_AXIS = "device"


def can_copy(device: jax.Device) -> bool:
    """True if jax gives the device's host memory a name."""
    return any(memory.kind == _HOST for memory in device.addressable_memories())


def measured_copies(
    device: jax.Device, speeds: Speeds, *, floor_s: float, small: bool, time_one: Callable[..., Timing] = timed
) -> Iterator[Measured]:
    """Times the copies of a device that `can_copy`; starting anything and waiting for it takes `floor_s`.

    Yields bandwidths of one way, of both together, and the share of a copy that a running computation hides.
    """
    rows = 64 if small else 8192
    on_host = jax.sharding.SingleDeviceSharding(device, memory_kind=_HOST)
    on_device = jax.sharding.SingleDeviceSharding(device)
    x = jax.device_put(random_array((rows, rows), "float32"), on_device)
    other = jax.block_until_ready(jax.device_put(x, on_host))
    detail = f"{_HOST}, {x.nbytes} bytes"

    def figure(what: str, timing: Timing, ways: int = 1) -> Measured:
        return timing.figure(what, detail, ways * x.nbytes / timing.above(floor_s), "bytes/s")

    out = time_one(lambda: jax.block_until_ready(jax.device_put(x, on_host)))
    yield figure("copy to host", out)
    back = time_one(lambda: jax.block_until_ready(jax.device_put(other, on_device)))
    yield figure("copy from host", back)
    both = time_one(lambda: jax.block_until_ready((jax.device_put(x, on_host), jax.device_put(other, on_device))))
    yield figure("copy both ways", both, ways=2)

    probe = matmul(speeds, "bfloat16", *[32 if small else 4096] * 3)
    chain = probe.chain(probe.links(2 * out.median_s))
    carried = probe.start()
    compute = time_one(lambda: jax.block_until_ready(chain(carried)))
    for what, put, copy_s in (("to", lambda: jax.device_put(x, on_host), out.median_s),
                              ("from", lambda: jax.device_put(other, on_device), back.median_s)):  # fmt: skip

        def together(put: Callable[[], Any] = put) -> None:
            running = chain(carried)
            jax.block_until_ready((running, put()))

        timing = time_one(together)
        hidden = hidden_share(timing.median_s, compute.median_s, copy_s)
        yield timing.figure(f"copy {what} host under compute", f"{detail}, beside {probe.detail}", hidden, "share")


def hidden_share(together_s: float, compute_s: float, copy_s: float) -> float:
    """The share of a copy that costs no time because a computation, at least as long, runs meanwhile.

    Example:
      >>> hidden_share(10.5, 10.0, 2.0)
      0.75
    """
    if copy_s <= 0:
        return 1.0
    return min(1.0, max(0.0, 1.0 - (together_s - compute_s) / copy_s))


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
        bus_bytes_per_s = sent * x.nbytes * links / timing.above(floor_s)
        yield timing.figure(what, f"{count} devices, {x.nbytes} bytes each", bus_bytes_per_s, "bytes/s")


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
