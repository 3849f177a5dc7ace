"""Bandwidths of the link between device and host: each direction, both at once, and while the device computes.

The host's side is pinned memory, as an offloaded residual's is. Copies are started by themselves, not in a program:
their start is small beside theirs, and is subtracted.

Read after `kernels`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax

from jaxckpt.calibration.kernels import Speeds, matmul, random_array
from jaxckpt.calibration.timing import Timing, timed
from jaxckpt.machine import Measured

_HOST = "pinned_host"


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
        return timing.figure(what, detail, ways * x.nbytes / max(timing.median_s - floor_s, 1e-9), "bytes/s")

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
